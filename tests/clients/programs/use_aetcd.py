"""aetcd (asyncio, grpcio): HOST PORT. It offers no TLS."""

from __future__ import annotations

import asyncio
import sys

import aetcd


async def main(host: str, port: int) -> None:
    async with aetcd.Client(host=host, port=port, timeout=10) as client:
        await keys(client)
        await changes(client)
        await leases(client)
        async with client.lock(b"aetcd/lock", ttl=10) as lock:
            assert await lock.is_acquired()
        assert (await client.status()).leader is not None
        assert [member.name for member in [m async for m in client.members()]] == ["m1"]


async def keys(client: aetcd.Client) -> None:
    await client.put(b"aetcd/a", b"1")
    assert (await client.get(b"aetcd/a")).value == b"1"
    await client.put(b"aetcd/b", b"2")
    assert [kv.key for kv in await client.get_prefix(b"aetcd/")] == [b"aetcd/a", b"aetcd/b"]
    assert await client.replace(b"aetcd/a", b"1", b"3")
    assert not await client.replace(b"aetcd/a", b"1", b"4")
    assert await client.delete(b"aetcd/b")
    assert await client.get(b"aetcd/b") is None
    revision = (await client.get(b"aetcd/a")).header.revision
    await client.compact(revision, physical=True)
    refusal = None
    try:
        await client.compact(revision)
    except Exception as error:  # it passes on what gRPC raises
        refusal = error
    assert refusal is not None
    assert "compacted" in str(refusal)


async def changes(client: aetcd.Client) -> None:
    first = (await client.get(b"aetcd/a")).header.revision + 1
    watch = await client.watch_prefix(b"aetcd/w", start_revision=first, prev_kv=True)
    await client.put(b"aetcd/w", b"1")
    await client.put(b"aetcd/w", b"2")
    await client.delete(b"aetcd/w")
    seen = []
    async for event in watch:
        seen.append((str(event.kind), event.kv.value))
        if len(seen) == 3:
            await watch.cancel()
            break
    assert seen == [("PUT", b"1"), ("PUT", b"2"), ("DELETE", b"")]


async def leases(client: aetcd.Client) -> None:
    lease = await client.lease(60)
    await client.put(b"aetcd/leased", b"x", lease)
    assert (await lease.refresh()).TTL == 60
    assert list(await lease.keys()) == [b"aetcd/leased"]
    await lease.revoke()
    assert await client.get(b"aetcd/leased") is None


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
