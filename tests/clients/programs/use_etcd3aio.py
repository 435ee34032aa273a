"""etcd3aio (asyncio, grpcio): HOST PORT [CA CERT KEY]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from etcd3aio import Etcd3Client
from etcd3aio.kv import KVService, prefix_range_end


async def main(host: str, port: int, tls: list[str]) -> None:
    options = {}
    if tls:
        ca, cert, key = (Path(path).read_bytes() for path in tls)
        options = {"ca_cert": ca, "cert_chain": cert, "cert_key": key, "tls_server_name": "localhost"}
    async with Etcd3Client([f"{host}:{port}"], **options) as client:
        await keys(client)
        await changes(client)
        await leases(client)
        async with client.lock("etcd3aio/lock", ttl=10):
            pass
        async with client.election("etcd3aio/election", value=b"me", ttl=10) as election:
            assert (await election.leader()).kvs[0].value == b"me"
        assert (await client.maintenance.status()).leader


async def keys(client: Etcd3Client) -> None:
    kv: KVService = client.kv
    await kv.put("etcd3aio/a", "1")
    await kv.put("etcd3aio/b", "2")
    answer = await kv.get("etcd3aio/", range_end=prefix_range_end("etcd3aio/"))
    assert [pair.value for pair in answer.kvs] == [b"1", b"2"]
    answer = await kv.txn([kv.txn_compare_value("etcd3aio/a", "1")], [kv.txn_op_put("etcd3aio/a", "3")])
    assert answer.succeeded
    answer = await kv.txn([kv.txn_compare_value("etcd3aio/a", "1")], [kv.txn_op_put("etcd3aio/a", "4")])
    assert not answer.succeeded
    assert (await kv.delete("etcd3aio/b")).deleted == 1
    revision = (await kv.get("etcd3aio/a")).header.revision
    await kv.compact(revision, physical=True)
    refusal = None
    try:
        await kv.get("etcd3aio/a", revision=1)
    except Exception as error:  # it passes on what gRPC raises
        refusal = error
    assert refusal is not None
    assert "compacted" in str(refusal)


async def changes(client: Etcd3Client) -> None:
    first = (await client.kv.put("etcd3aio/w", "1")).header.revision
    await client.kv.delete("etcd3aio/w")
    seen = []
    async for answer in client.watch.watch("etcd3aio/w", start_revision=first):
        seen += [event.type for event in answer.events]
        if len(seen) == 2:
            break
    assert seen == [0, 1]


async def leases(client: Etcd3Client) -> None:
    lease = await client.lease.grant(60)
    await client.kv.put("etcd3aio/leased", "x", lease=lease.ID)
    async for answer in client.lease.keep_alive(lease.ID):
        assert answer.TTL == 60
        break
    assert list((await client.lease.time_to_live(lease.ID, keys=True)).keys) == [b"etcd3aio/leased"]
    await client.lease.revoke(lease.ID)
    assert not (await client.kv.get("etcd3aio/leased")).kvs


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
