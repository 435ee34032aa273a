"""What a request adds to the database, for the space quota (contract §9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from store.etcdpb import rpc_pb2

DEFAULT_QUOTA_BYTES: Final = 2 << 30
PUT_OVERHEAD_BYTES: Final = 256
LEASE_COST_BYTES: Final = 64


def put_cost(request: rpc_pb2.PutRequest) -> int:
    return PUT_OVERHEAD_BYTES + len(request.key) + len(request.value)


def txn_cost(request: rpc_pb2.TxnRequest) -> int:
    """The dearer of the two branches, nested transactions included; 0 where nothing is put."""
    return max(_ops_cost(request.success), _ops_cost(request.failure))


def _ops_cost(ops: Iterable[rpc_pb2.RequestOp]) -> int:
    total = 0
    for op in ops:
        kind = op.WhichOneof("request")
        if kind == "request_put":
            total += put_cost(op.request_put)
        elif kind == "request_txn":
            total += txn_cost(op.request_txn)
    return total
