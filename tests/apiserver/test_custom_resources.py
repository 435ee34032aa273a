"""Custom resource definitions and their objects (contract §3.13)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from apiserver_adapter import json_path
from apiserver_adapter.app import ApiServer
from kvorum.backends import RemoteBackend
from tests.apiserver.conftest import Api, serving
from tests.apiserver.test_kubectl import Kubectl, find_kubectl
from watchcache.backend import Put

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {
                        "name": "Ready",
                        "type": "string",
                        "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
                    },
                ],
            },
            {
                "name": "v1beta1",
                "served": True,
                "storage": False,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            },
        ],
    },
}


def widget(name: str = "w", size: int = 1) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}}


async def established(api: Api) -> dict[str, Any]:
    """Create the definition and wait as a client does."""
    created = await api.post(CRDS, CRD)
    assert created.status == 201, created.body
    async with api.watch(CRDS, resourceVersion=created.body["metadata"]["resourceVersion"]) as watch:
        while (event := await watch.next(10)) is not None:
            conditions = event["object"].get("status", {}).get("conditions", [])
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                crd: dict[str, Any] = event["object"]
                return crd
    raise AssertionError("not established")


async def test_an_established_definition_is_served_and_discovered(api: Api) -> None:
    crd = await established(api)
    assert crd["status"]["acceptedNames"]["listKind"] == "WidgetList"
    assert crd["status"]["storedVersions"] == ["v1"]
    resources = {r["name"]: r for r in (await api.get("/apis/example.com/v1")).body["resources"]}
    assert (resources["widgets"]["kind"], resources["widgets"]["shortNames"]) == ("Widget", ["wd"])
    assert "widgets/status" in resources
    assert "apis/example.com/v1" in (await api.get("/openapi/v3")).body["paths"]
    assert (await api.get(WIDGETS)).body["items"] == []


async def test_custom_objects_live_like_others(api: Api) -> None:
    await established(api)
    created = (await api.post(WIDGETS, widget())).body
    assert created["metadata"]["generation"] == 1
    async with api.watch(WIDGETS, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        changed = (await api.patch(f"{WIDGETS}/w", {"spec": {"size": 2}})).body
        assert changed["metadata"]["generation"] == 2
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        status = (await api.patch(f"{WIDGETS}/w/status", ready)).body
        assert status["metadata"]["generation"] == 2
        events = await watch.take(2)
        assert [event["type"] for event in events] == ["MODIFIED", "MODIFIED"]
    assert (await api.patch(f"{WIDGETS}/w", {}, "strategic-merge-patch+json")).status == 415
    assert (await api.put(f"{WIDGETS}/w", widget())).status == 422  # no resourceVersion
    table = (await api.get(WIDGETS, headers={"Accept": TABLE})).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Ready"]
    assert table["rows"][0]["cells"] == ["w", 2, "True"]
    assert (await api.delete(f"{WIDGETS}/w")).body["status"] == "Success"


async def test_versions_share_their_objects(api: Api) -> None:
    await established(api)
    await api.post(WIDGETS, widget(size=7))
    other = WIDGETS.replace("/v1/", "/v1beta1/")
    seen = (await api.get(f"{other}/w")).body
    assert (seen["apiVersion"], seen["spec"]) == ("example.com/v1beta1", {"size": 7})


async def test_a_deleted_definition_takes_its_objects_along(api: Api) -> None:
    await established(api)
    await api.post(WIDGETS, widget())
    marked = await api.delete(f"{CRDS}/widgets.example.com")
    assert marked.body["metadata"]["deletionTimestamp"]
    async with api.watch(CRDS, resourceVersion=marked.body["metadata"]["resourceVersion"]) as watch:
        while (event := await watch.next(10)) is not None and event["type"] != "DELETED":
            pass
    assert (await api.get(WIDGETS)).status == 404
    assert (await api.get("/apis/example.com")).status == 404
    await established(api)
    assert (await api.get(WIDGETS)).body["items"] == []


async def test_definitions_are_served_again_after_a_restart(api: Api, backend: RemoteBackend) -> None:
    await established(api)
    await api.post(WIDGETS, widget())
    async with serving(ApiServer(backend)) as second:
        assert [w["metadata"]["name"] for w in (await second.get(WIDGETS)).body["items"]] == ["w"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "other.example.com"),
        ("spec.scope", "Galaxy"),
        ("spec.versions.0.storage", False),
        ("spec.versions.0.schema", {}),
        ("spec.names", "widgets"),
        ("spec.versions", {}),
        ("spec.versions.0.name", None),
        ("spec.versions.0.subresources", []),
    ],
)
async def test_malformed_definitions_are_refused(api: Api, path: str, value: Any) -> None:
    crd: Any = copy.deepcopy(CRD)
    *steps, last = path.split(".")
    node = crd
    for step in steps:
        node = node[int(step)] if step.isdigit() else node[step]
    node[last] = value
    answer = await api.post(CRDS, crd)
    assert (answer.status, answer.body["reason"]) in ((422, "Invalid"), (400, "BadRequest"))
    assert (await api.get("/readyz")).status == 200


async def test_kubectl_applies_a_definition_and_its_objects(api: Api, tmp_path: Path) -> None:
    binary = find_kubectl()
    if binary is None:
        pytest.skip("no kubectl found")
    kubectl = Kubectl(binary, tmp_path, api.url)
    await kubectl.ok("apply", "-f", kubectl.write("crd.json", json.dumps(CRD)))
    await kubectl.ok("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=10s")
    path = kubectl.write("w.json", json.dumps(widget()))
    assert "created" in await kubectl.ok("apply", "-f", path)
    kubectl.write("w.json", json.dumps(widget(size=9)))
    assert "configured" in await kubectl.ok("apply", "-f", path)
    assert "9" in await kubectl.ok("get", "wd")
    await kubectl.ok("delete", "crd", "widgets.example.com", "--timeout=10s")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".a.b", 1),
        ("['a']['b']", 1),
        (".l[0].n", "x"),
        (".l[-1].n", "y"),
        (".l[*].n", "x"),
        ('.l[?(@.n=="y")].v', 2),
        (".l[9].n", None),
        (".nope", None),
        (".a..b", None),
    ],
)
def test_json_paths(path: str, expected: Any) -> None:
    obj = {"a": {"b": 1}, "l": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]}
    assert json_path.first(path, obj) == expected


async def test_a_definition_malformed_in_the_store_does_not_stop_the_others(
    api: Api, backend: RemoteBackend
) -> None:
    key = b"/registry/apiextensions.k8s.io/customresourcedefinitions/bad.example.com"
    stored = b'{"apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"bad.example.com"},"spec":7}'
    await backend.txn([], [Put(key, stored)])
    crd = await established(api)
    assert crd["status"]["storedVersions"] == ["v1"]
    assert (await api.get("/readyz")).status == 200
