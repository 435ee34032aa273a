"""A revision that would hold more changes than can be numbered is refused before anything changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import TOO_MANY_CHANGES, EtcdError
from store.etcdpb import rpc_pb2
from store.mvcc import txn as txns
from tests.store.driver import Driver


async def test_too_many_changes_in_one_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txns, "MAX_SUB", 5)
    op = rpc_pb2.RequestOp
    wipe = rpc_pb2.DeleteRangeRequest(key=b"k", range_end=b"l")
    async with Driver(tmp_path / "state.db") as driver:
        driver.apply(rpc_pb2.LeaseGrantRequest(ID=1, TTL=60))
        for i in range(6):
            driver.put(b"k%d" % i, lease=1)
        inner = rpc_pb2.TxnRequest(success=[op(request_delete_range=wipe)])
        for command in (
            wipe,
            rpc_pb2.TxnRequest(success=[op(request_txn=inner)]),
            rpc_pb2.LeaseRevokeRequest(ID=1),
        ):
            with pytest.raises(EtcdError) as caught:
                driver.apply(command)
            assert caught.value == TOO_MANY_CHANGES
        assert driver.machine.revision == 7
        driver.delete(b"k0")
        assert driver.delete(b"k", b"l") == 9


async def test_a_limit_at_the_edge_of_its_type_is_no_limit(tmp_path: Path) -> None:
    async with Driver(tmp_path / "state.db") as driver:
        driver.put(b"a")
        for limit in (2**63 - 1, -(2**63)):
            request = rpc_pb2.RangeRequest(key=b"a", range_end=b"\x00", limit=limit)
            answer = await driver.ask(request)
            assert (answer.count, answer.more, len(answer.kvs)) == (1, False, 1)
