"""Puts without a task of their own: proposed in the turn that read them, answered in the one that applied them.

Only what will be proposed for certain goes this way. Everything else, refusals before all, is left to
``KVServicer.Put``.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from google.protobuf.message import DecodeError

from store.api import encode
from store.api.context import ApiContext
from store.errors import Code, EtcdError
from store.etcdpb import rpc_pb2
from store.listener.direct import DirectCall
from store.observations import OK, Method, Trace
from store.quota import put_cost
from store.wire import varint

log = logging.getLogger(__name__)

_PUT: Final = b"\x22"
"""Field 4 of InternalRequest, ``put``, length-delimited."""


class DirectPut:
    """A direct handler of KV.Put; calls with metadata of ``noticed`` are not for it."""

    def __init__(self, api: ApiContext, method: Method, noticed: frozenset[bytes]) -> None:
        self._api = api
        self._method = method
        self._noticed = noticed

    def __call__(self, message: bytes, call: DirectCall) -> bool:
        api, began = self._api, time.perf_counter()
        try:
            request = rpc_pb2.PutRequest.FromString(message)
        except DecodeError:
            return False
        if not request.key or request.ignore_value or request.ignore_lease or call.carries(self._noticed):
            return False
        if api.replica.is_learner or api.is_behind or not api.has_space(put_cost(request)):
            return False

        proposed = time.perf_counter()

        def done(outcome: Any) -> None:
            try:
                code = self._answer(call, outcome)
                trace = Trace(began, ("checks", proposed), ("agreement and apply", time.perf_counter()))
                api.observations.end(self._method, trace, code, request)
            except Exception as error:  # whoever applies has nothing to do with it
                log.error("a put that was applied could not be answered", exc_info=error)
                call.refuse(Code.UNKNOWN, str(error) or type(error).__name__)

        if not api.replica.submit(_PUT + varint(len(message)) + message, done):
            return False
        api.observations.started[self._method] += 1
        return True

    def _answer(self, call: DirectCall, outcome: Any) -> int:
        api = self._api
        if isinstance(outcome, EtcdError):
            api.note_failed(outcome)
            call.refuse(outcome.code, outcome.message)
            return outcome.code
        call.reply(encode.put_response(api.header_field(outcome.revision), outcome))
        return OK
