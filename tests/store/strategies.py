"""Hypothesis strategies for requests over a handful of keys, so that they meet often."""

from __future__ import annotations

from hypothesis import strategies as st

from store.etcdpb import rpc_pb2

keys = st.sampled_from([b"a", b"aa", b"ab", b"b", b"b\x00", b"c"])
ends = st.sampled_from([b"", b"", b"b", b"c", b"d", b"\x00", b"a"])
values = st.sampled_from([b"", b"x", b"y", b"zz"])
lease_ids = st.sampled_from([0, 0, 0, 1, 2])
offsets = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, -1])
"""How far before the current revision; 0 stands for the latest, -1 for a future one."""

puts = st.builds(rpc_pb2.PutRequest, key=keys, value=values, lease=lease_ids, prev_kv=st.booleans()) | st.builds(
    rpc_pb2.PutRequest, key=keys, ignore_value=st.booleans(), ignore_lease=st.just(True), prev_kv=st.booleans()
)
deletes = st.builds(rpc_pb2.DeleteRangeRequest, key=keys, range_end=ends, prev_kv=st.booleans())
bounds = st.sampled_from([0, 0, 0, 3, 6])
ranges = st.builds(
    rpc_pb2.RangeRequest,
    key=keys,
    range_end=ends,
    limit=st.sampled_from([0, 0, 1, 2, -1]),
    sort_order=st.sampled_from([0, 0, 1, 2]),
    sort_target=st.sampled_from([0, 0, 1, 2, 3, 4]),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False, False, True]),
    min_mod_revision=bounds,
    max_mod_revision=bounds,
    min_create_revision=bounds,
    max_create_revision=bounds,
    revision=offsets,
)
results = st.sampled_from([0, 1, 2, 3])
compares = st.one_of(
    st.builds(rpc_pb2.Compare, key=keys, range_end=ends, result=results, target=st.just(0), version=bounds),
    st.builds(
        rpc_pb2.Compare, key=keys, range_end=ends, result=results, target=st.just(1), create_revision=bounds
    ),
    st.builds(rpc_pb2.Compare, key=keys, range_end=ends, result=results, target=st.just(2), mod_revision=bounds),
    st.builds(rpc_pb2.Compare, key=keys, range_end=ends, result=results, target=st.just(3), value=values),
    st.builds(rpc_pb2.Compare, key=keys, range_end=ends, result=results, target=st.just(4), lease=lease_ids),
)


def _txns(ops: st.SearchStrategy[rpc_pb2.RequestOp]) -> st.SearchStrategy[rpc_pb2.TxnRequest]:
    branch = st.lists(ops, max_size=4)  # those that clash are dropped by the test
    return st.builds(rpc_pb2.TxnRequest, compare=st.lists(compares, max_size=2), success=branch, failure=branch)


flat_ops = st.one_of(
    st.builds(rpc_pb2.RequestOp, request_put=puts),
    st.builds(rpc_pb2.RequestOp, request_delete_range=deletes),
    st.builds(rpc_pb2.RequestOp, request_range=ranges),
)
ops = st.recursive(flat_ops, lambda inner: st.builds(rpc_pb2.RequestOp, request_txn=_txns(inner)), max_leaves=4)
txns = _txns(ops)

commands = st.one_of(
    puts,
    puts,
    deletes,
    txns,
    txns,
    ranges,
    st.builds(rpc_pb2.CompactionRequest, revision=offsets),
    st.builds(rpc_pb2.LeaseGrantRequest, ID=st.sampled_from([1, 2]), TTL=st.just(60)),
    st.builds(rpc_pb2.LeaseRevokeRequest, ID=st.sampled_from([1, 2])),
    st.sampled_from(["flush", "reopen", "compacted"]),
)
histories = st.lists(commands, min_size=25, max_size=60)
