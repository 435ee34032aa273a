"""Running a stream of operations against two servers and comparing what they say."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf import text_format

from store.etcdpb import kv_pb2, rpc_pb2, rpc_pb2_grpc
from tests.differential.operations import Operation, Operations

CALL_TIMEOUT_S: Final = 20.0


class Differs(AssertionError):
    """Two servers gave different answers; the message shows the operation and both."""


class Server:
    """One of the two, by its endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self._stubs: dict[str, Any] = {
            "KV": rpc_pb2_grpc.KVStub(self._channel),  # type: ignore[no-untyped-call]
            "Lease": rpc_pb2_grpc.LeaseStub(self._channel),  # type: ignore[no-untyped-call]
            "Maintenance": rpc_pb2_grpc.MaintenanceStub(self._channel),  # type: ignore[no-untyped-call]
        }
        self._watch: Any = rpc_pb2_grpc.WatchStub(self._channel)  # type: ignore[no-untyped-call]

    def begin(self, operation: Operation) -> Any:
        method = getattr(self._stubs[operation.service], operation.method)
        return method.future(operation.request, timeout=CALL_TIMEOUT_S)

    def ask(self, operation: Operation) -> tuple[str, Any]:
        return outcome(self.begin(operation), operation.request)

    def history(self, key: bytes, end: bytes, first: int, last: int) -> list[Any]:
        """All events from ``first`` to ``last``, by a watch that asks for previous values."""
        create = rpc_pb2.WatchCreateRequest(
            key=key, range_end=end, start_revision=first, prev_kv=True, progress_notify=True
        )
        call = self._watch.Watch(iter_open([rpc_pb2.WatchRequest(create_request=create)]), timeout=CALL_TIMEOUT_S)
        events: list[Any] = []
        try:
            for response in call:
                if response.canceled:
                    raise Differs(f"the watch was cancelled: {response.cancel_reason}")
                events += response.events
                if events and events[-1].kv.mod_revision >= last:
                    return events
        finally:
            call.cancel()
        return events

    def close(self) -> None:
        self._channel.close()


def iter_open(requests: list[Any]) -> Iterator[Any]:
    """Requests of a stream that stays open: grpcio ends it when the call is cancelled."""
    yield from requests
    threading.Event().wait(CALL_TIMEOUT_S)


def outcome(future: Any, request: Any) -> tuple[str, Any]:
    """("ok", answer without what may differ between servers) or (code, message)."""
    try:
        answer = future.result()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    answer.header.ClearField("cluster_id")
    answer.header.ClearField("member_id")
    answer.header.ClearField("raft_term")
    if isinstance(answer, rpc_pb2.LeaseTimeToLiveResponse):
        answer.TTL = min(answer.TTL, 0)  # seconds left: time passes between two calls
        answer.keys[:] = sorted(answer.keys)
    elif isinstance(answer, rpc_pb2.LeaseLeasesResponse):
        leases = sorted(lease.ID for lease in answer.leases)
        return "ok", leases
    elif isinstance(answer, rpc_pb2.HashKVResponse):
        answer.ClearField("hash_revision")  # newer than etcd 3.5.1
    elif isinstance(answer, rpc_pb2.RangeResponse):
        _settle_ties(request, answer)
    elif isinstance(answer, rpc_pb2.TxnResponse):
        _settle_ties_of_txn(request, answer)
    return "ok", answer


_SORTED_BY: Final[dict[int, Callable[[Any], Any]]] = {
    rpc_pb2.RangeRequest.VERSION: lambda kv: kv.version,
    rpc_pb2.RangeRequest.CREATE: lambda kv: kv.create_revision,
    rpc_pb2.RangeRequest.MOD: lambda kv: kv.mod_revision,
    rpc_pb2.RangeRequest.VALUE: lambda kv: kv.value,
}


def _settle_ties(request: rpc_pb2.RangeRequest, answer: rpc_pb2.RangeResponse) -> None:
    """Keys that sort alike come in no order that etcd promises (it sorts unstably): they are put in one here.

    Where a limit cut through such a group, which of its keys were kept is accidental too and does not count.
    """
    if request.sort_target not in _SORTED_BY:
        return
    by = _SORTED_BY[request.sort_target]
    last = by(answer.kvs[-1]) if answer.kvs else None
    groups = [list(group) for _, group in itertools.groupby(answer.kvs, by)]
    kept = [kv for group in groups for kv in sorted(group, key=lambda kv: kv.key)]
    if answer.more:
        for kv in kept:
            if by(kv) == last:
                kv.CopyFrom(kv_pb2.KeyValue(version=1))
    copies = [kv_pb2.KeyValue.FromString(kv.SerializeToString()) for kv in kept]
    del answer.kvs[:]
    answer.kvs.extend(copies)


def _settle_ties_of_txn(request: rpc_pb2.TxnRequest, answer: rpc_pb2.TxnResponse) -> None:
    for op, response in zip(
        request.success if answer.succeeded else request.failure, answer.responses, strict=True
    ):
        if op.HasField("request_range"):
            _settle_ties(op.request_range, response.response_range)
        elif op.HasField("request_txn"):
            _settle_ties_of_txn(op.request_txn, response.response_txn)


def show(value: Any) -> str:
    return text_format.MessageToString(value) if hasattr(value, "DESCRIPTOR") else str(value)


@dataclass
class Summary:
    """What a run did."""

    operations: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    revision: int = 1
    compacted: int = 0
    events: int = 0
    compared: int = 1
    """The histories up to this revision have been compared."""


def compare(
    ours: str, theirs: str, seed: int, count: int, progress: Callable[[int], None] = lambda _done: None
) -> Summary:
    """Run ``count`` operations against both fresh servers, then compare histories and hashes.

    Raises:
        Differs: at the first difference.
    """
    servers = Server(ours), Server(theirs)
    summary = Summary()
    try:
        operations = Operations(seed)
        for number in range(count):
            operation = operations.next()
            if operation.method == "Compact":  # afterwards the history before it can no longer be asked for
                _compare_events(servers, summary, operations.revision)
            answers = [
                outcome(future, operation.request) for future in [server.begin(operation) for server in servers]
            ]
            if answers[0] != answers[1]:
                raise Differs(_difference(number, operation, answers))
            kind, answer = answers[0]
            summary.operations += 1
            summary.outcomes[f"{operation.method} {kind if kind == 'ok' else answer}"] += 1
            if kind == "ok" and hasattr(answer, "header"):
                operations.revision = max(operations.revision, answer.header.revision)
                if operation.method == "Compact":
                    summary.compacted = max(summary.compacted, operation.request.revision)
            if number % 500 == 499:
                progress(number + 1)
        summary.revision = operations.revision
        _compare_events(servers, summary, operations.revision)
        _compare_hashes(servers)
    finally:
        for server in servers:
            server.close()
    return summary


def _difference(number: int, operation: Operation, answers: list[tuple[str, Any]]) -> str:
    shown = "\n".join(
        f"--- {name}: {kind}\n{show(answer)}"
        for name, (kind, answer) in zip(("kvorum", "etcd"), answers, strict=True)
    )
    return f"operation {number}, {operation.service}.{operation.method}\n{show(operation.request)}\n{shown}"


def _compare_events(servers: tuple[Server, Server], summary: Summary, last: int) -> None:
    """All events since the last time, by a watch of everything, of a range and of a key."""
    first, summary.compared = summary.compared + 1, last
    for key, end in ((b"\0", b"\0"), (b"a/", b"b"), (b"b/03", b"")):
        until = last if key == b"\0" else _last_change(servers[0], key, end)
        if until < first:
            continue
        ours, theirs = (server.history(key, end, first, until) for server in servers)
        if ours != theirs:
            for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
                if our != their:
                    raise Differs(f"event {number} of {key!r}: kvorum\n{show(our)}\netcd\n{show(their)}")
            raise Differs(f"{len(ours)} and {len(theirs)} events of {key!r}")
        summary.events += len(ours)


def _compare_hashes(servers: tuple[Server, Server]) -> None:
    hashes = [
        server.ask(Operation("Maintenance", "HashKV", rpc_pb2.HashKVRequest(revision=0))) for server in servers
    ]
    if hashes[0] != hashes[1]:
        raise Differs(f"HashKV: kvorum {hashes[0]}, etcd {hashes[1]}")


def _last_change(server: Server, key: bytes, end: bytes) -> int:
    """The newest revision among the live keys of a range: a watch from before it has an event there."""
    request = rpc_pb2.RangeRequest(key=key, range_end=end)
    kind, answer = server.ask(Operation("KV", "Range", request))
    return max((kv.mod_revision for kv in answer.kvs), default=0) if kind == "ok" else 0
