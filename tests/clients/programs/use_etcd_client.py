"""etcd-client-py (Rust: etcd-client over tonic): HOST PORT. It offers no TLS."""

from __future__ import annotations

import asyncio
import sys

import etcd_client
from etcd_client import Client, CompareOp, CondVar, EtcdLockOption, Txn, TxnOp


async def main(host: str, port: int) -> None:
    client = Client([f"http://{host}:{port}"])
    async with client.connect() as etcd:
        await keys(etcd)
        await changes(etcd)
        await leases(etcd)
    order: list[str] = []
    await asyncio.gather(*(hold_lock(client, order) for _ in range(3)))
    assert order == ["in", "out"] * 3


async def keys(etcd: etcd_client.Communicator) -> None:
    await etcd.put(b"tonic/a", b"1")
    await etcd.put(b"tonic/b", b"2")
    assert bytes(await etcd.get(b"tonic/a")) == b"1"
    found = [(bytes(key), bytes(value)) for key, value in await etcd.get_prefix(b"tonic/")]
    assert found == [(b"tonic/a", b"1"), (b"tonic/b", b"2")]
    wanted = etcd_client.Compare.value(b"tonic/a", CompareOp.EQUAL, b"1")
    txn = Txn().when([wanted]).and_then([TxnOp.put(b"tonic/a", b"3"), TxnOp.delete(b"tonic/b")])
    assert (await etcd.txn(txn)).succeeded()
    assert not (await etcd.txn(txn)).succeeded()
    assert await etcd.get(b"tonic/b") is None
    await etcd.delete_prefix(b"tonic/")
    assert await etcd.keys_prefix(b"tonic/") == []


async def changes(etcd: etcd_client.Communicator) -> None:
    ready = CondVar()

    async def read() -> list[tuple[str, bytes]]:
        seen = []
        async for event in etcd.watch_prefix(b"tonic/w", ready_event=ready):
            seen.append((str(event.event), bytes(event.value)))
            if len(seen) == 3:
                break
        return seen

    reading = asyncio.create_task(read())
    await ready.wait()
    await etcd.put(b"tonic/w", b"1")
    await etcd.put(b"tonic/w", b"2")
    await etcd.delete(b"tonic/w")
    seen = await reading
    assert [value for _, value in seen] == [b"1", b"2", b""]
    assert "DELETE" in seen[2][0]


async def leases(etcd: etcd_client.Communicator) -> None:
    assert not await etcd.lease_grant(60)  # this binding keeps the id of a lease to itself
    refusal = None
    try:
        await etcd.lease_revoke(12345)
    except etcd_client.ClientError as error:
        refusal = error
    assert refusal is not None
    assert "requested lease not found" in str(refusal)


async def hold_lock(client: Client, order: list[str]) -> None:
    async with client.with_lock(EtcdLockOption(lock_name=b"tonic/lock", ttl=10, timeout=20.0)):
        order.append("in")
        await asyncio.sleep(0.05)
        order.append("out")


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
