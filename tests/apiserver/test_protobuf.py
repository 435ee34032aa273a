"""Protobuf bodies by the field table (contract §3.4), built here by hand."""

from __future__ import annotations

import pytest

from apiserver_adapter.protobuf import MAGIC, DecodeError, decode, message_fields
from apiserver_adapter.protobuf_fields import FIELDS, KINDS
from tests.apiserver.conftest import Api

PROTOBUF = {"Content-Type": "application/vnd.kubernetes.protobuf"}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")


def test_every_type_named_in_the_table_is_in_the_table() -> None:
    scalars = set("sibyTUQXJ")
    assert set(FIELDS) >= KINDS
    for name in FIELDS:
        fields = message_fields(name)
        assert len({entry.name for entry in fields.values()}) == len(fields)
        for entry in fields.values():
            assert entry.type in scalars or entry.type in FIELDS, (name, entry)


def test_a_config_map_with_maps_times_and_dropped_zeros() -> None:
    metadata = (
        field(1, "a") + field(2, "") + field(3, "ns") + field(7, 0) + field(8, b"")
        + field(11, field(1, "app") + field(2, "x")) + field(14, "hold")
    )  # fmt: skip
    raw = (
        field(1, metadata)
        + field(2, field(1, "k") + field(2, "v"))
        + field(3, field(1, "b") + field(2, b"\x00\xff"))
    )
    assert decode(envelope("v1", "ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "ns", "labels": {"app": "x"}, "finalizers": ["hold"]},
        "data": {"k": "v"},
        "binaryData": {"b": "AP8="},
    }


def test_pointers_keep_zero_and_wrapped_types_unwrap() -> None:
    container = (
        field(1, "c")
        + field(8, field(1, field(1, "cpu") + field(2, field(1, "100m"))))
        + field(10, field(1, field(2, field(1, "/h") + field(2, field(1, 1) + field(3, "http")))))
    )
    template = field(2, field(2, container) + field(4, 0) + field(11, 0))
    rolling = field(2, field(1, field(1, 0) + field(2, 1)) + field(2, field(1, 1) + field(3, "25%")))
    spec = field(1, 0) + field(3, template) + field(4, field(1, "RollingUpdate") + rolling) + field(5, 0)
    decoded = decode(envelope("apps/v1", "Deployment", field(2, spec)))["spec"]
    assert decoded["replicas"] == 0
    assert "minReadySeconds" not in decoded
    assert decoded["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": "25%"}
    pod = decoded["template"]["spec"]
    assert (pod["terminationGracePeriodSeconds"], "hostNetwork" in pod) == (0, False)
    (found,) = pod["containers"]
    assert found["resources"] == {"limits": {"cpu": "100m"}}
    assert found["livenessProbe"] == {"httpGet": {"path": "/h", "port": "http"}}


def test_times_and_negative_numbers() -> None:
    lease = field(1, "me") + field(2, 15) + field(4, field(1, 1_700_000_000) + field(2, 123_456_000))
    spec = decode(envelope("coordination.k8s.io/v1", "Lease", field(2, lease)))["spec"]
    assert spec == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "2023-11-14T22:13:20.123456Z",
    }
    deletion = decode(envelope("v1", "DeleteOptions", field(1, -1) + field(2, field(1, "u")) + field(4, "Orphan")))
    assert deletion["gracePeriodSeconds"] == -1
    assert (deletion["preconditions"], deletion["propagationPolicy"]) == ({"uid": "u"}, "Orphan")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        MAGIC,
        MAGIC + b"\xff",
        envelope("v1", "Nonsense", b""),
        envelope("v1", "ConfigMap", b"\x0a\x7f"),
        envelope("v1", "ConfigMap", field(99, "data that would be lost")),
        envelope("v1", "ConfigMap", field(1, 5)),
        envelope("v1", "ConfigMap", b"\x0f"),
    ],
)
def test_what_cannot_be_decoded_whole_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_unknown_fields_without_content_are_harmless() -> None:
    raw = field(1, field(1, "a")) + field(99, "") + field(98, 0)
    assert decode(envelope("v1", "ConfigMap", raw))["metadata"] == {"name": "a"}


async def test_a_protobuf_create_is_stored_as_json(api: Api) -> None:
    raw = field(1, field(1, "pb")) + field(2, field(1, "k") + field(2, "v"))
    path = "/api/v1/namespaces/default/configmaps"
    answer = await api.post(path, envelope("v1", "ConfigMap", raw), headers=PROTOBUF)
    assert (answer.status, answer.body["data"]) == (201, {"k": "v"})
    refused = await api.post(path, b"junk", headers=PROTOBUF)
    assert (refused.status, refused.body["reason"]) == (400, "BadRequest")
