"""The machine and an obviously right model answer every history of requests alike (contract §1-5)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import google_crc32c
from hypothesis import HealthCheck, given, settings

from store.errors import EtcdError
from store.etcdpb import kv_pb2, rpc_pb2
from store.mvcc.hashkv import revision_key
from store.mvcc.position import position
from store.validate import check_txn
from tests.store.driver import Driver
from tests.store.model import Model, hashed_entries
from tests.store.strategies import histories


def _absolute(command: Any, current: int) -> Any:
    """Turn the offsets of generated ranges and compactions into revisions."""
    if isinstance(command, rpc_pb2.RangeRequest | rpc_pb2.CompactionRequest):
        offset = command.revision
        if isinstance(command, rpc_pb2.CompactionRequest) or offset:
            command.revision = max(current - offset + 1 if offset > 0 else current - offset, 0)
    elif isinstance(command, rpc_pb2.TxnRequest):
        for op in (*command.success, *command.failure):
            if op.HasField("request_range"):
                _absolute(op.request_range, current)
            elif op.HasField("request_txn"):
                _absolute(op.request_txn, current)
    return command


def _expected(model: Model, command: Any) -> Any:
    match command:
        case rpc_pb2.PutRequest():
            return model.put(command)
        case rpc_pb2.DeleteRangeRequest():
            return model.delete_range(command)
        case rpc_pb2.TxnRequest():
            return model.txn(command)
        case rpc_pb2.RangeRequest():
            return model.range(command)
        case rpc_pb2.CompactionRequest():
            return model.compact(command.revision)
        case rpc_pb2.LeaseGrantRequest():
            return model.grant(command.ID)
        case _:
            return model.revoke(command.ID)


async def _outcome(driver: Driver, command: Any) -> Any:
    try:
        return await driver.ask(command)
    except EtcdError as refusal:
        return refusal


def _model_outcome(model: Model, command: Any) -> Any:
    try:
        return _expected(model, command)
    except EtcdError as refusal:
        return refusal


async def _replay(history: list[Any], path: Path) -> None:
    model = Model()
    async with Driver(path) as driver:
        for command in history:
            if command == "flush":
                await driver.machine.flush()
            elif command == "reopen":
                await driver.stop()
                await driver.start()
            elif command == "compacted":
                await driver.machine.compactor.wait_finished(model.compacted)
            else:
                _absolute(command, model.revision)
                _make_valid(command)
                assert await _outcome(driver, command) == _model_outcome(model, command)
            assert driver.machine.revision == model.revision
        await _compare_everything(driver, model)


def _make_valid(command: Any) -> None:
    """Drop operations until the transaction is one that enters raft: no key is written twice."""
    while isinstance(command, rpc_pb2.TxnRequest):
        try:
            check_txn(command)
            return
        except EtcdError:
            longer = max(command.success, command.failure, key=len)
            del longer[-1]


async def _compare_everything(driver: Driver, model: Model) -> None:
    for revision in range(max(model.compacted, 1), model.revision + 1):
        everything = rpc_pb2.RangeRequest(key=b"\x00", range_end=b"\x00", revision=revision)
        assert await driver.ask(everything) == model.range(everything)
        crc, compacted, _ = await driver.machine.hash_kv(revision)
        assert (crc, compacted) == (_expected_hash(model, revision), model.compacted)


def _expected_hash(model: Model, revision: int) -> int:
    data, sub, last = b"key", 0, 0
    entries = {id(event) for _, event in hashed_entries(model, revision)}
    for main, event in model.events:
        sub = sub + 1 if main == last else 0
        last = main
        if id(event) not in entries:
            continue
        dead = event.type == kv_pb2.Event.DELETE
        stored = kv_pb2.KeyValue(key=event.kv.key) if dead else event.kv
        data += revision_key(position(main, sub), is_tombstone=dead) + stored.SerializeToString()
    crc: int = google_crc32c.value(data)
    return crc


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(histories)
def test_every_history_is_answered_as_by_the_model(history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_replay(history, Path(folder) / "state.db"))
