"""Patching, field ownership, ages and paths, without a server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver_adapter.errors import ApiError
from apiserver_adapter.field_paths import flatten, leaves, nest, path_text
from apiserver_adapter.negotiation import negotiate
from apiserver_adapter.patch import json_patch, merge_patch
from apiserver_adapter.paths import ResourcePath, parse
from apiserver_adapter.strategic import strategic_merge
from apiserver_adapter.table import human_duration

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(_json, _json)
def test_a_merge_patch_is_idempotent_and_leaves_its_arguments_alone(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(st.dictionaries(st.text(max_size=3), _json, max_size=3))
def test_a_merge_patch_onto_nothing_is_itself_without_nulls(patch: Any) -> None:
    assert merge_patch({}, patch) == _without_nulls(patch)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_examples_of_the_rfc(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/absent"},
        {"op": "replace", "path": "/absent", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "move", "from": "/map", "path": "/map/inner"},
        {"op": "leap", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/b"},
        {"path": "/a"},
    ],
)
def test_a_failing_operation_fails_the_patch(operation: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        json_patch({"a": 1, "list": [1], "map": {}}, [operation])
    assert caught.value.code == 422


def test_json_patch_positions() -> None:
    operations = [
        {"op": "add", "path": "/l/0", "value": 0},
        {"op": "add", "path": "/l/-", "value": 9},
        {"op": "replace", "path": "/l/1", "value": 5},
        {"op": "remove", "path": "/l/0"},
    ]
    assert json_patch({"l": [1]}, operations) == {"l": [5, 9]}


POD = {
    "metadata": {"finalizers": ["a", "b"]},
    "spec": {
        "containers": [{"name": "x", "image": "1", "args": ["1"]}, {"name": "y", "image": "1"}],
        "tolerations": [{"key": "k"}],
    },
}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"spec": {"containers": [{"name": "y", "image": "2"}]}}, "spec.containers.1.image", "2"),
        ({"spec": {"containers": [{"name": "z"}]}}, "spec.containers.2.name", "z"),
        ({"spec": {"containers": [{"name": "x", "args": ["2"]}]}}, "spec.containers.0.args", ["2"]),
        ({"spec": {"containers": [{"name": "x", "$patch": "delete"}]}}, "spec.containers.0.name", "y"),
        ({"spec": {"containers": [{"$patch": "replace"}, {"name": "q"}]}}, "spec.containers", [{"name": "q"}]),
        ({"spec": {"tolerations": [{"key": "n"}]}}, "spec.tolerations", [{"key": "n"}]),
        ({"metadata": {"finalizers": ["c"]}}, "metadata.finalizers", ["a", "b", "c"]),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, "metadata.finalizers", ["b"]),
        (
            {"spec": {"$setElementOrder/containers": [{"name": "y"}, {"name": "x"}], "containers": []}},
            "spec.containers.0.name",
            "y",
        ),
        ({"spec": {"$patch": "replace", "nodeName": "n"}}, "spec", {"nodeName": "n"}),
        ({"spec": {"$retainKeys": ["nodeName"], "nodeName": "n"}}, "spec", {"nodeName": "n"}),
        ({"spec": {"tolerations": None}}, "spec.tolerations", None),
    ],
)
def test_strategic_merge(patch: Any, path: str, expected: Any) -> None:
    before = copy.deepcopy(POD)
    value: Any = strategic_merge(POD, patch)
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value.get(step)
    assert value == expected
    assert before == POD


def test_a_patch_element_without_its_merge_key_is_400() -> None:
    with pytest.raises(ApiError) as caught:
        strategic_merge(POD, {"spec": {"containers": [{"image": "x"}]}})
    assert caught.value.code == 400


def test_leaves_nest_and_flatten_agree() -> None:
    obj = {"spec": {"containers": [{"name": "x", "image": "1", "args": ["1"]}], "empty": {}}, "n": 1}
    paths = set(leaves(obj))
    assert set(flatten(nest(paths))) == paths
    assert ("f:spec", "f:containers", 'k:{"name":"x"}', "f:image") in paths
    assert ("f:spec", "f:containers", 'k:{"name":"x"}', "f:args") in paths
    assert path_text(("f:spec", "f:containers", 'k:{"name":"x"}', "f:image")) == '.spec.containers[name="x"].image'


def test_ports_with_one_number_and_two_protocols_are_two_elements() -> None:
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]
    found = leaves({"containers": [{"name": "c", "ports": ports}]})
    assert len([path for path in found if path[-1] == "."]) == 3


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (3600, "60m"), (3 * 3600 + 60, "3h1m"),
        (9 * 3600, "9h"), (2 * 86400, "2d"), (3 * 86400 + 3600, "3d1h"), (400 * 86400, "400d"),
        (800 * 86400, "2y70d"), (-5, "0s"),
    ],
)  # fmt: skip
def test_ages_read_as_kubectl_prints_them(seconds: float, expected: str) -> None:
    assert human_duration(seconds) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ResourcePath("", "v1", "pods")),
        ("/api/v1/namespaces/ns/pods/p/", ResourcePath("", "v1", "pods", "ns", "p")),
        ("/api/v1/namespaces/ns", ResourcePath("", "v1", "namespaces", name="ns")),
        ("/api/v1/namespaces/ns/finalize", ResourcePath("", "v1", "namespaces", "", "ns", "finalize")),
        ("/apis/apps/v1/namespaces/ns/deployments/d/scale",
         ResourcePath("apps", "v1", "deployments", "ns", "d", "scale")),
        ("/api/v1/watch/namespaces/ns/pods", ResourcePath("", "v1", "pods", "ns", watch=True)),
        ("/api/v1", None),
        ("/apis/apps/v1", None),
        ("/metrics", None),
        ("/api/v1/namespaces/ns/pods/p/a/b", None),
    ],
)  # fmt: skip
def test_resource_paths(path: str, expected: ResourcePath | None) -> None:
    assert parse(path) == expected


@pytest.mark.parametrize(
    ("accept", "transform"),
    [
        ("", ""),
        ("*/*", ""),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "Table"),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", ""),
        ("application/vnd.kubernetes.protobuf, application/json;q=0.5", ""),
    ],
)
def test_the_first_servable_accept_clause_wins(accept: str, transform: str) -> None:
    assert negotiate(accept).transform == transform
