"""The wire format that is written by hand is what protobuf writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.etcdpb import kv_pb2, rpc_pb2
from store.wire import encode_pair, frame_pair, varint

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
