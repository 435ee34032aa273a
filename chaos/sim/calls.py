"""Recorded requests at a member's services: the production servicers, called without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos import wire
from chaos.check import history as h
from store.etcdpb import rpc_pb2

if TYPE_CHECKING:
    from chaos.sim.member import Process


async def perform(process: Process, request: h.Request) -> h.Answer:
    """Have a member serve ``request``. Raises EtcdError."""
    match request:
        case h.Range():
            encoded = await process.kv.Range(wire.range_request(request), None)
            found = rpc_pb2.RangeResponse.FromString(encoded.data)
            return h.Answer(found.header.revision, wire.found(found))
        case h.Put():
            put = rpc_pb2.PutResponse.FromString((await process.kv.Put(wire.put_request(request), None)).data)
            return h.Answer(put.header.revision, h.Done())
        case h.Delete():
            answer = await process.kv.DeleteRange(wire.delete_request(request), None)
            deleted = rpc_pb2.DeleteRangeResponse.FromString(answer.data)
            return h.Answer(deleted.header.revision, h.Deleted(deleted.deleted))
        case h.Txn():
            answer = await process.kv.Txn(wire.txn_request(request), None)
            return wire.chosen(rpc_pb2.TxnResponse.FromString(answer.data))
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
