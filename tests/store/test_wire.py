"""The wire format that is written by hand is what protobuf writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.etcdpb import internal_pb2, kv_pb2, rpc_pb2
from store.wire import PUT_FIELD, encode_pair, frame_pair, only_field, varint

NUMBERS = st.one_of(
    st.integers(0, (1 << 63) - 1), st.sampled_from([edge + step for k in range(1, 9) for edge in [1 << 7 * k]
                                                    for step in (-1, 0)])
)  # fmt: skip
TEXTS = st.one_of(st.binary(max_size=300), st.just(bytes(20_000)))


@given(st.one_of(NUMBERS, st.integers(-(1 << 63), -1)))
def test_a_varint_is_that_of_protobuf(value: int) -> None:
    message = rpc_pb2.LeaseRevokeRequest(ID=value).SerializeToString()
    assert message == (b"\x08" + varint(value) if value else b"")


@given(TEXTS, TEXTS, NUMBERS, NUMBERS, NUMBERS, st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_pair_is_that_of_protobuf(
    key: bytes, value: bytes, create: int, mod: int, version: int, lease: int
) -> None:
    body = kv_pb2.KeyValue(
        key=key, value=value, create_revision=create, mod_revision=mod, version=version, lease=lease
    ).SerializeToString()
    assert encode_pair(key, value, create, mod, version, lease) == frame_pair(body)
    assert rpc_pb2.RangeResponse.FromString(frame_pair(body)).kvs[0].SerializeToString() == body


@given(TEXTS, st.integers(1, 30))
def test_only_a_put_alone_and_whole_is_taken_for_one(key: bytes, cut: int) -> None:
    put = rpc_pb2.PutRequest(key=key, value=b"v", lease=7)
    message = internal_pb2.InternalRequest(put=put).SerializeToString()
    assert only_field(message, PUT_FIELD) == put.SerializeToString()
    assert only_field(message, b"\x32") is None
    assert only_field(message[:-cut], PUT_FIELD) is None
    with_more = internal_pb2.InternalRequest(put=put, header=internal_pb2.RequestHeader(ID=9))
    assert only_field(with_more.SerializeToString(), PUT_FIELD) is None
    assert only_field(b"\x22" + b"\x80" * cut, PUT_FIELD) is None
