"""Between recorded requests and a member's services: the production servicers, called without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chaos.check import history as h
from store.etcdpb import kv_pb2, rpc_pb2

if TYPE_CHECKING:
    from chaos.sim.member import Process

_TARGETS: Final = {
    h.Target.VERSION: (rpc_pb2.Compare.VERSION, "version"),
    h.Target.CREATE: (rpc_pb2.Compare.CREATE, "create_revision"),
    h.Target.MOD: (rpc_pb2.Compare.MOD, "mod_revision"),
    h.Target.VALUE: (rpc_pb2.Compare.VALUE, "value"),
}
_RELATIONS: Final = {
    h.Relation.EQUAL: rpc_pb2.Compare.EQUAL,
    h.Relation.NOT_EQUAL: rpc_pb2.Compare.NOT_EQUAL,
    h.Relation.GREATER: rpc_pb2.Compare.GREATER,
    h.Relation.LESS: rpc_pb2.Compare.LESS,
}


async def perform(process: Process, request: h.Request) -> h.Answer:
    """Have a member serve ``request``. Raises EtcdError."""
    match request:
        case h.Range():
            found = rpc_pb2.RangeResponse.FromString((await process.kv.Range(_range(request), None)).data)
            return h.Answer(found.header.revision, _found(found))
        case h.Put():
            put = rpc_pb2.PutResponse.FromString((await process.kv.Put(_put(request), None)).data)
            return h.Answer(put.header.revision, h.Done())
        case h.Delete():
            answer = await process.kv.DeleteRange(_delete(request), None)
            deleted = rpc_pb2.DeleteRangeResponse.FromString(answer.data)
            return h.Answer(deleted.header.revision, h.Deleted(deleted.deleted))
        case h.Txn():
            txn = rpc_pb2.TxnResponse.FromString((await process.kv.Txn(_txn(request), None)).data)
            results = tuple(map(_result, txn.responses))
            return h.Answer(txn.header.revision, h.Chosen(txn.succeeded, results))
        case h.Compact():
            await process.kv.Compact(rpc_pb2.CompactionRequest(revision=request.revision), None)
            return h.Answer(0, h.Done())
        case h.Grant():
            grant = rpc_pb2.LeaseGrantRequest(ID=request.lease, TTL=request.ttl_s)
            await process.leases.LeaseGrant(grant, None)
            return h.Answer(0, h.Done())
        case h.Revoke():
            await process.leases.LeaseRevoke(rpc_pb2.LeaseRevokeRequest(ID=request.lease), None)
            return h.Answer(0, h.Done())


def _range(request: h.Range) -> rpc_pb2.RangeRequest:
    return rpc_pb2.RangeRequest(
        key=request.key,
        range_end=request.end,
        limit=request.limit,
        revision=request.revision,
        serializable=request.serializable,
    )


def _put(request: h.Put) -> rpc_pb2.PutRequest:
    return rpc_pb2.PutRequest(key=request.key, value=request.value, lease=request.lease)


def _delete(request: h.Delete) -> rpc_pb2.DeleteRangeRequest:
    return rpc_pb2.DeleteRangeRequest(key=request.key, range_end=request.end)


def _txn(request: h.Txn) -> rpc_pb2.TxnRequest:
    return rpc_pb2.TxnRequest(
        compare=[_compare(each) for each in request.compares],
        success=[_op(each) for each in request.success],
        failure=[_op(each) for each in request.failure],
    )


def _compare(compare: h.Compare) -> rpc_pb2.Compare:
    target, field = _TARGETS[compare.target]
    fields: dict[str, Any] = {field: compare.value}
    return rpc_pb2.Compare(key=compare.key, target=target, result=_RELATIONS[compare.relation], **fields)


def _op(action: h.Action) -> rpc_pb2.RequestOp:
    match action:
        case h.Range():
            return rpc_pb2.RequestOp(request_range=_range(action))
        case h.Put():
            return rpc_pb2.RequestOp(request_put=_put(action))
        case h.Delete():
            return rpc_pb2.RequestOp(request_delete_range=_delete(action))


def _result(response: rpc_pb2.ResponseOp) -> h.Found | h.Deleted | h.Done:
    kind = response.WhichOneof("response")
    if kind == "response_range":
        return _found(response.response_range)
    if kind == "response_delete_range":
        return h.Deleted(response.response_delete_range.deleted)
    return h.Done()


def _found(response: rpc_pb2.RangeResponse) -> h.Found:
    return h.Found(tuple(map(_pair, response.kvs)), response.count)


def _pair(kv: kv_pb2.KeyValue) -> h.KeyValue:
    return h.KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def watch_response(data: bytes, time: int) -> tuple[int, h.WatchResponse]:
    """The watch id and the record of an encoded WatchResponse."""
    answer = rpc_pb2.WatchResponse.FromString(data)
    events = tuple(
        h.Event(
            event.type == kv_pb2.Event.PUT,
            _pair(event.kv),
            _pair(event.prev_kv) if event.HasField("prev_kv") else None,
        )
        for event in answer.events
    )
    return answer.watch_id, h.WatchResponse(
        time,
        answer.header.revision,
        events,
        answer.created,
        answer.canceled,
        answer.compact_revision,
        answer.cancel_reason,
        answer.fragment,
    )
