"""Between the vocabulary of histories and etcd's messages.

Long values are recorded as their digest: they are there to make big messages, and equality is all that is checked.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final

from chaos.check.history import (
    Action,
    Answer,
    Chosen,
    Compare,
    Delete,
    Deleted,
    Done,
    Event,
    Found,
    KeyValue,
    Put,
    Range,
    Relation,
    Request,
    Target,
    Txn,
    WatchRequest,
    WatchResponse,
)
from store.etcdpb import kv_pb2, rpc_pb2

VALUE_MAX: Final = 256
"""Bytes; a longer value is recorded as a digest."""

_RELATIONS: Final = {
    Relation.EQUAL: rpc_pb2.Compare.EQUAL,
    Relation.NOT_EQUAL: rpc_pb2.Compare.NOT_EQUAL,
    Relation.GREATER: rpc_pb2.Compare.GREATER,
    Relation.LESS: rpc_pb2.Compare.LESS,
}


def recorded_value(value: bytes) -> bytes:
    """A value as histories show it."""
    if len(value) <= VALUE_MAX:
        return value
    return b"sha256:%s:%d" % (hashlib.sha256(value).hexdigest().encode(), len(value))


def recorded_request(request: Request) -> Request:
    """A request as histories show it."""
    match request:
        case Put():
            return replace(request, value=recorded_value(request.value))
        case Txn():
            success, failure = (tuple(map(_recorded, branch)) for branch in (request.success, request.failure))
            return replace(request, success=success, failure=failure)
    return request


def _recorded(action: Action) -> Action:
    return replace(action, value=recorded_value(action.value)) if isinstance(action, Put) else action


def range_request(asked: Range) -> rpc_pb2.RangeRequest:
    return rpc_pb2.RangeRequest(
        key=asked.key,
        range_end=asked.end,
        limit=asked.limit,
        revision=asked.revision,
        serializable=asked.serializable,
    )


def put_request(asked: Put) -> rpc_pb2.PutRequest:
    return rpc_pb2.PutRequest(key=asked.key, value=asked.value, lease=asked.lease)


def delete_request(asked: Delete) -> rpc_pb2.DeleteRangeRequest:
    return rpc_pb2.DeleteRangeRequest(key=asked.key, range_end=asked.end)


def txn_request(asked: Txn) -> rpc_pb2.TxnRequest:
    return rpc_pb2.TxnRequest(
        compare=[_compare(compare) for compare in asked.compares],
        success=[_operation(action) for action in asked.success],
        failure=[_operation(action) for action in asked.failure],
    )


def _compare(asked: Compare) -> rpc_pb2.Compare:
    compare = rpc_pb2.Compare(key=asked.key, result=_RELATIONS[asked.relation])
    match asked.target, asked.value:
        case Target.VERSION, int(number):
            compare.target, compare.version = rpc_pb2.Compare.VERSION, number
        case Target.CREATE, int(number):
            compare.target, compare.create_revision = rpc_pb2.Compare.CREATE, number
        case Target.MOD, int(number):
            compare.target, compare.mod_revision = rpc_pb2.Compare.MOD, number
        case Target.VALUE, bytes(value):
            compare.target, compare.value = rpc_pb2.Compare.VALUE, value
        case _:
            raise TypeError(f"{asked.target} does not compare with {asked.value!r}")
    return compare


def _operation(action: Action) -> rpc_pb2.RequestOp:
    match action:
        case Range():
            return rpc_pb2.RequestOp(request_range=range_request(action))
        case Put():
            return rpc_pb2.RequestOp(request_put=put_request(action))
        case Delete():
            return rpc_pb2.RequestOp(request_delete_range=delete_request(action))


def key_value(kv: kv_pb2.KeyValue) -> KeyValue:
    value = recorded_value(kv.value)
    return KeyValue(kv.key, value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def found(response: rpc_pb2.RangeResponse) -> Found:
    return Found(tuple(key_value(kv) for kv in response.kvs), response.count)


def chosen(response: rpc_pb2.TxnResponse) -> Answer:
    results = tuple(_result(each) for each in response.responses)
    return Answer(response.header.revision, Chosen(response.succeeded, results))


def _result(response: rpc_pb2.ResponseOp) -> Found | Deleted | Done:
    match response.WhichOneof("response"):
        case "response_range":
            return found(response.response_range)
        case "response_delete_range":
            return Deleted(response.response_delete_range.deleted)
        case _:
            return Done()


def watch_create(asked: WatchRequest) -> rpc_pb2.WatchCreateRequest:
    create = rpc_pb2.WatchCreateRequest(
        key=asked.key,
        range_end=asked.end,
        start_revision=asked.start_revision,
        prev_kv=asked.prev_kv,
        fragment=asked.fragment,
        progress_notify=True,
    )
    if asked.no_put:
        create.filters.append(rpc_pb2.WatchCreateRequest.NOPUT)
    if asked.no_delete:
        create.filters.append(rpc_pb2.WatchCreateRequest.NODELETE)
    return create


def watch_response(response: rpc_pb2.WatchResponse, now: int) -> WatchResponse:
    return WatchResponse(
        time=now,
        revision=response.header.revision,
        events=tuple(_event(event) for event in response.events),
        created=response.created,
        canceled=response.canceled,
        compact_revision=response.compact_revision,
        reason=response.cancel_reason,
        fragment=response.fragment,
    )


def _event(event: kv_pb2.Event) -> Event:
    prev = key_value(event.prev_kv) if event.HasField("prev_kv") else None
    return Event(event.type == kv_pb2.Event.PUT, key_value(event.kv), prev)
