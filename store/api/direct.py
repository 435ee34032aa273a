"""Writes without a task of their own: proposed in the turn that read them, answered in the one that applied them.

Only what will be proposed for certain goes this way. Everything else, refusals before all, is left to
``KVServicer``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from store.api import encode
from store.api.context import ApiContext
from store.errors import Code, EtcdError
from store.etcdpb import rpc_pb2
from store.listener.direct import DirectCall
from store.observations import OK, Method, Trace
from store.quota import put_cost, txn_cost
from store.validate import check_txn, is_read_only
from store.wire import field_bytes

log = logging.getLogger(__name__)


class Write(NamedTuple):
    """What tells one kind of write from another."""

    tag: bytes
    """Of its field in InternalRequest, length-delimited."""
    decode: Callable[[bytes], Any]
    is_plain: Callable[[ApiContext, Any], bool]
    """Whether nothing can refuse it before it is proposed, and its answer will need nothing from the disk."""
    cost: Callable[[Any], int]
    encode: Callable[[bytes, Any], bytes]


def _is_plain_put(_api: ApiContext, request: rpc_pb2.PutRequest) -> bool:
    return bool(request.key) and not request.ignore_value and not request.ignore_lease


def _is_plain_txn(api: ApiContext, request: rpc_pb2.TxnRequest) -> bool:
    for op in (*request.success, *request.failure):
        kind = op.WhichOneof("request")
        if kind == "request_txn" or (kind == "request_range" and op.request_range.revision):
            return False
    check_txn(request, api.options.max_txn_ops)
    return not is_read_only(request)


PUT: Final = Write(b"\x22", rpc_pb2.PutRequest.FromString, _is_plain_put, put_cost, encode.put_response)
TXN: Final = Write(b"\x32", rpc_pb2.TxnRequest.FromString, _is_plain_txn, txn_cost, encode.txn_response)


class DirectWrite:
    """A direct handler of one method; calls with metadata of ``noticed`` are not for it."""

    def __init__(self, api: ApiContext, write: Write, method: Method, noticed: frozenset[bytes]) -> None:
        self._api = api
        self._write = write
        self._method = method
        self._noticed = noticed

    def __call__(self, message: bytes, call: DirectCall) -> bool:
        api, write, began = self._api, self._write, time.perf_counter()
        try:
            request = write.decode(message)
            if not write.is_plain(api, request):
                return False
        except (DecodeError, EtcdError):
            return False
        if call.carries(self._noticed) or api.replica.is_learner or not api.has_space(write.cost(request)):
            return False
        pending = _Pending(call, request, began)
        withdraw = api.replica.submit(field_bytes(write.tag, message), partial(self._done, pending))
        if withdraw is None:
            return False
        call.gone = partial(self._gone, pending, withdraw)
        api.observations.started[self._method] += 1
        return True

    def _done(self, pending: _Pending, outcome: Any) -> None:
        """Answer a write that was applied or refused."""
        pending.applied, call = time.perf_counter(), pending.call
        try:
            code = self._answer(call, outcome)
        except Exception as error:  # whoever applies has nothing to do with it
            log.error("a write that was applied could not be answered", exc_info=error)
            code = Code.UNKNOWN
            call.refuse(code, str(error) or type(error).__name__)
        self._api.observations.end(self._method, pending, code, pending.request)

    def _gone(self, pending: _Pending, withdraw: Callable[[], None]) -> None:
        """Nobody waits for the answer any more."""
        pending.applied = time.perf_counter()
        withdraw()
        self._api.observations.end(self._method, pending, Code.CANCELLED, pending.request)

    def _answer(self, call: DirectCall, outcome: Any) -> int:
        api = self._api
        if isinstance(outcome, Exception):
            refusal = outcome if isinstance(outcome, EtcdError) else EtcdError(Code.UNKNOWN, str(outcome))
            api.note_failed(refusal)
            call.refuse(refusal.code, refusal.message)
            return refusal.code
        call.reply(self._write.encode(api.header_field(outcome.revision), outcome))
        return OK


class _Pending:
    """One write under way, and its trace (store.observations.Timed)."""

    __slots__ = ("applied", "began", "call", "proposed", "request")

    def __init__(self, call: DirectCall, request: Any, began: float) -> None:
        self.call = call
        self.request = request
        self.began = began
        self.proposed = self.applied = time.perf_counter()

    def text(self, ended: float) -> str:
        trace = Trace(self.began, ("checks", self.proposed), ("agreement and apply", self.applied))
        return trace.text(ended)
