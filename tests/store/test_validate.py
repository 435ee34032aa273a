"""What is refused before raft (contract §2-4)."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import (
    DUPLICATE_KEY,
    EMPTY_KEY,
    INVALID_SORT_OPTION,
    KEY_NOT_FOUND,
    LEASE_PROVIDED,
    TOO_MANY_OPS,
    VALUE_PROVIDED,
    EtcdError,
)
from store.etcdpb import rpc_pb2
from store.validate import check_delete_range, check_put, check_range, check_txn, is_read_only, is_serializable


def put(key: bytes) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key))


def delete(key: bytes, end: bytes = b"") -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=key, range_end=end))


def get(key: bytes, *, serializable: bool = False) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key, serializable=serializable))


def nested(then: list[rpc_pb2.RequestOp], other: list[rpc_pb2.RequestOp] | None = None) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_txn=rpc_pb2.TxnRequest(success=then, failure=other or []))


def refused(*ops: rpc_pb2.RequestOp) -> EtcdError | None:
    try:
        check_txn(rpc_pb2.TxnRequest(success=ops))
    except EtcdError as error:
        return error
    return None


def test_single_requests() -> None:
    cases: list[tuple[Any, Any, EtcdError]] = [
        (check_range, rpc_pb2.RangeRequest(), EMPTY_KEY),
        (check_put, rpc_pb2.PutRequest(value=b"v"), EMPTY_KEY),
        (check_delete_range, rpc_pb2.DeleteRangeRequest(range_end=b"\x00"), EMPTY_KEY),
        (check_put, rpc_pb2.PutRequest(key=b"a", value=b"v", ignore_value=True), VALUE_PROVIDED),
        (check_put, rpc_pb2.PutRequest(key=b"a", lease=1, ignore_lease=True), LEASE_PROVIDED),
    ]
    for check, request, error in cases:
        with pytest.raises(EtcdError) as caught:
            check(request)
        assert caught.value == error


def test_an_unknown_sort_option_is_refused() -> None:
    for request in (
        rpc_pb2.RangeRequest(key=b"a", sort_order=9),  # type: ignore[arg-type]
        rpc_pb2.RangeRequest(key=b"a", sort_target=5),  # type: ignore[arg-type]
    ):
        with pytest.raises(EtcdError) as caught:
            check_range(request)
        assert caught.value == INVALID_SORT_OPTION


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ([put(b"a"), put(b"a")], DUPLICATE_KEY),
        ([put(b"a"), put(b"b")], None),
        ([put(b"a"), delete(b"a")], DUPLICATE_KEY),
        ([delete(b"a", b"c"), put(b"b")], DUPLICATE_KEY),
        ([delete(b"a", b"c"), put(b"c")], None),
        ([delete(b"a"), delete(b"a")], None),
        # A delete to the end of the key space is not recognised as overlapping.
        ([put(b"a"), delete(b"0", b"\x00")], None),
        ([nested([put(b"a")], [put(b"a")])], None),
        ([put(b"a"), nested([], [put(b"a")])], DUPLICATE_KEY),
        ([nested([put(b"a")]), nested([put(b"a")])], DUPLICATE_KEY),
        ([nested([delete(b"a")]), put(b"a")], DUPLICATE_KEY),
        # Siblings are compared with the deletes of earlier ones only.
        ([nested([delete(b"a")]), nested([put(b"a")])], DUPLICATE_KEY),
        ([nested([put(b"a")]), nested([delete(b"a")])], None),
        ([rpc_pb2.RequestOp()], KEY_NOT_FOUND),
        ([nested([put(b"")])], EMPTY_KEY),
    ],
)
def test_keys_written_twice_in_one_execution(ops: list[rpc_pb2.RequestOp], error: EtcdError | None) -> None:
    assert refused(*ops) == error


def test_the_number_of_operations_is_limited_and_nesting_uses_what_is_left() -> None:
    many = [put(b"%d" % i) for i in range(129)]
    assert refused(*many[:128]) is None
    assert refused(*many) == TOO_MANY_OPS
    assert refused(nested(many[:127])) is None
    assert refused(nested(many[:128])) == TOO_MANY_OPS


def test_an_empty_key_in_a_compare_is_refused() -> None:
    with pytest.raises(EtcdError) as caught:
        check_txn(rpc_pb2.TxnRequest(compare=[rpc_pb2.Compare(version=1)]))
    assert caught.value == EMPTY_KEY


def test_only_ranges_in_both_branches_make_a_transaction_read_only() -> None:
    assert is_read_only(rpc_pb2.TxnRequest())
    assert is_read_only(rpc_pb2.TxnRequest(success=[get(b"a")], failure=[get(b"b")]))
    assert not is_read_only(rpc_pb2.TxnRequest(success=[get(b"a")], failure=[put(b"b")]))
    assert not is_read_only(rpc_pb2.TxnRequest(success=[nested([get(b"a")])]))
    assert is_serializable(rpc_pb2.TxnRequest())
    local, linear = get(b"a", serializable=True), get(b"a")
    assert is_serializable(rpc_pb2.TxnRequest(success=[local]))
    assert not is_serializable(rpc_pb2.TxnRequest(success=[local], failure=[linear]))
