"""Objects over HTTP: create, read, update, patch, delete and their refusals (contract §1.5, §3.7 - §3.9)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.apiserver.conftest import Api

CMS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"


def cm(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str = "web", replicas: int = 1) -> dict[str, Any]:
    container = {"name": "c", "image": "nginx:1", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


async def test_create_sets_what_the_server_owns(api: Api) -> None:
    body = cm(x="1")
    body["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"}
    answer = await api.post(CMS, body)
    assert answer.status == 201
    metadata = answer.body["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] > "2020"
    assert int(metadata["resourceVersion"]) > 0
    assert "selfLink" not in metadata
    assert answer.headers["Cache-Control"] == "no-cache, private"
    assert "Audit-Id" in answer.headers
    assert (await api.get(f"{CMS}/a")).body == answer.body


async def test_create_of_an_existing_object_is_409(api: Api) -> None:
    await api.post(CMS, cm())
    answer = await api.post(CMS, cm())
    assert answer.status == 409
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "a" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "a", "kind": "configmaps"},
        "code": 409,
    }


async def test_create_with_a_resource_version_is_500_with_the_storage_text(api: Api) -> None:
    body = cm()
    body["metadata"]["resourceVersion"] = "5"
    answer = await api.post(CMS, body)
    assert (answer.status, answer.body["message"]) == (
        500,
        "resourceVersion should not be set on objects to be created",
    )


async def test_a_missing_object_is_404_with_its_resource_and_group(api: Api) -> None:
    answer = await api.get(f"{DEPLOYMENTS}/nope")
    assert answer.status == 404
    assert answer.body["message"] == 'deployments.apps "nope" not found'
    assert answer.body["details"] == {"name": "nope", "group": "apps", "kind": "deployments"}


@pytest.mark.parametrize(
    "path",
    ["/nope", "/api/v1/nope", "/apis/nope/v1/x", "/api/v2", "/api/v1/namespaces/default/configmaps/a/status"],
)
async def test_an_unknown_path_is_a_text_404(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.text.strip()) == (404, "404 page not found")


async def test_generate_name_makes_a_free_name(api: Api) -> None:
    body = cm()
    body["metadata"] = {"generateName": "job-"}
    names = {(await api.post(CMS, body)).body["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("change", "code", "reason", "text"),
    [
        ({"metadata": {}}, 422, "Invalid", "name or generateName is required"),
        ({"metadata": {"name": "Bad_Name"}}, 422, "Invalid", "Invalid value"),
        ({"kind": "Secret"}, 400, "BadRequest", "the object provided is unrecognized"),
        ({"apiVersion": "v2"}, 400, "BadRequest", "does not match the expected API version (v1)"),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400, "BadRequest", "does not match the namespace"),
    ],
)
async def test_malformed_objects_are_refused(
    api: Api, change: dict[str, Any], code: int, reason: str, text: str
) -> None:
    answer = await api.post(CMS, cm() | change)
    assert (answer.status, answer.body["reason"]) == (code, reason)
    assert text in answer.body["message"]


async def test_bodies_that_are_not_objects_are_400(api: Api) -> None:
    for body in (b"{", b"[]", b'"x"', b'{"a": NaN}', b""):
        answer = await api.post(CMS, body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.body["reason"]) == (400, "BadRequest")


async def test_a_body_above_three_mebibytes_is_413(api: Api) -> None:
    answer = await api.post(CMS, cm(x="y" * (3 * 1024 * 1024)))
    assert (answer.status, answer.body["reason"]) == (413, "RequestEntityTooLarge")
    assert answer.body["message"] == "Request entity too large: limit is 3145728"


async def test_an_unknown_content_type_is_415_and_an_impossible_accept_406(api: Api) -> None:
    answer = await api.post(CMS, b"x", headers={"Content-Type": "text/csv"})
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")
    answer = await api.get(CMS, headers={"Accept": "text/csv"})
    assert (answer.status, answer.body["reason"]) == (406, "NotAcceptable")


async def test_yaml_bodies_are_understood(api: Api) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {k: v}\n"
    answer = await api.post(CMS, body, headers={"Content-Type": "application/yaml"})
    assert (answer.status, answer.body["data"]) == (201, {"k": "v"})


async def test_strict_validation_refuses_duplicate_fields_and_warn_names_them(api: Api) -> None:
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d"},"data":{"k":"1","k":"2"}}'
    headers = {"Content-Type": "application/json"}
    answer = await api.post(f"{CMS}?fieldValidation=Strict", body, headers=headers)
    assert (answer.status, answer.body["message"]) == (400, 'strict decoding error: duplicate field "k"')
    answer = await api.post(CMS, body, headers=headers)
    assert answer.status == 201
    assert answer.headers["Warning"].startswith("299 - ")
    answer = await api.post(f"{CMS}?fieldValidation=Nope", body, headers=headers)
    assert answer.status == 422


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"replicas": "3"}, "cannot unmarshal string into Go struct field Deployment.spec.replicas of type int32"),
        ({"replicas": True}, "cannot unmarshal bool into"),
        ({"paused": "no"}, "Deployment.spec.paused of type bool"),
        ({"template": []}, "cannot unmarshal array into"),
        ({"selector": {"matchLabels": {"a": 1}}}, "Deployment.spec.selector.matchLabels of type string"),
        ({"template": {"spec": {"containers": {}}}}, "Deployment.spec.template.spec.containers of type []"),
        ({"template": {"spec": {"containers": [{"ports": [1]}]}}}, "cannot unmarshal number into"),
        ({"template": {"spec": {"containers": [None]}}}, "cannot unmarshal null into"),
    ],
)
async def test_fields_of_the_wrong_type_are_400(api: Api, spec: dict[str, Any], text: str) -> None:
    body = deployment()
    body["spec"] |= spec
    answer = await api.post(DEPLOYMENTS, body)
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert text in answer.body["message"]
    await api.post(DEPLOYMENTS, deployment())
    patched = await api.patch(f"{DEPLOYMENTS}/web", {"spec": spec})
    assert patched.status == 400


@pytest.mark.parametrize("metadata", [[], "x", {"name": 5}, {"name": "a", "labels": {"x": 1}}, {"labels": []}])
async def test_malformed_metadata_is_400(api: Api, metadata: Any) -> None:
    answer = await api.post(CMS, cm() | {"metadata": metadata})
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")


async def test_malformed_bodies_of_subresources_and_deletes_are_400(api: Api) -> None:
    await api.post(DEPLOYMENTS, deployment())
    await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    answers = [
        await api.put("/api/v1/namespaces/default/finalize", {"spec": 1}),
        await api.put(f"{DEPLOYMENTS}/web/scale", {"spec": []}),
        await api.patch(f"{DEPLOYMENTS}/web/scale", {"spec": "x"}),
        await api.post(f"{PODS}/p/binding", {"target": "n"}),
        await api.post(f"{PODS}/p/eviction", {"deleteOptions": 1}),
        await api.delete(f"{PODS}/p", {"preconditions": [1]}),
        await api.delete(f"{PODS}/p", {"dryRun": -1}),
        await api.delete(f"{PODS}/p", {"gracePeriodSeconds": "x"}),
    ]
    assert [answer.status for answer in answers] == [400] * len(answers)
    assert (await api.get(f"{PODS}/p")).status == 200


async def test_unsupported_verbs_are_405(api: Api) -> None:
    answer = await api.post("/api/v1/configmaps", cm())
    assert (answer.status, answer.body["reason"]) == (405, "MethodNotAllowed")
    answer = await api.put(CMS, cm())
    assert answer.status == 405


# --- update -----------------------------------------------------------------------------------------------------


async def test_a_stale_put_conflicts_and_a_fresh_one_succeeds(api: Api) -> None:
    first = (await api.post(CMS, cm(x="1"))).body
    second = await api.put(f"{CMS}/a", first | {"data": {"x": "2"}})
    assert second.status == 200
    stale = await api.put(f"{CMS}/a", first | {"data": {"x": "3"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    assert stale.body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert stale.body["details"] == {"name": "a", "kind": "configmaps"}
    unconditional = await api.put(f"{CMS}/a", cm(x="4"))
    assert unconditional.status == 200


async def test_a_put_with_another_uid_conflicts(api: Api) -> None:
    created = (await api.post(CMS, cm())).body
    created["metadata"]["uid"] = "other"
    answer = await api.put(f"{CMS}/a", created)
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert "UID in precondition: other" in answer.body["message"]


async def test_a_put_under_another_name_is_400(api: Api) -> None:
    await api.post(CMS, cm())
    answer = await api.put(f"{CMS}/a", cm("b"))
    assert (answer.status, answer.body["message"]) == (
        400,
        "the name of the object (b) does not match the name on the URL (a)",
    )


async def test_a_put_of_the_same_content_writes_nothing(api: Api) -> None:
    created = (await api.post(CMS, cm(x="1"))).body
    version = created["metadata"]["resourceVersion"]
    for body in (created, cm(x="1")):
        answer = await api.put(f"{CMS}/a", body)
        assert (answer.status, answer.body["metadata"]["resourceVersion"]) == (200, version)


async def test_a_lease_put_must_carry_its_version(api: Api) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    await api.post(leases, lease)
    answer = await api.put(f"{leases}/l", lease)
    assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")
    assert "must be specified for an update" in answer.body["message"]


async def test_generation_follows_the_spec_only(api: Api) -> None:
    created = (await api.post(DEPLOYMENTS, deployment())).body
    assert created["metadata"]["generation"] == 1
    path = f"{DEPLOYMENTS}/web"
    labelled = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).body
    assert labelled["metadata"]["generation"] == 1
    scaled = (await api.patch(path, {"spec": {"replicas": 2}})).body
    assert scaled["metadata"]["generation"] == 2
    status = (await api.patch(f"{path}/status", {"status": {"replicas": 2}})).body
    assert (status["metadata"]["generation"], status["status"]) == (2, {"replicas": 2})


async def test_status_and_spec_are_written_apart(api: Api) -> None:
    await api.post(DEPLOYMENTS, deployment() | {"status": {"replicas": 7}})
    path = f"{DEPLOYMENTS}/web"
    assert (await api.get(path)).body["status"] == {}
    body = deployment(replicas=5) | {"status": {"replicas": 3}}
    status = (await api.put(f"{path}/status", body)).body
    assert (status["status"], status["spec"]["replicas"]) == ({"replicas": 3}, 1)
    main = (await api.put(path, deployment(replicas=4) | {"status": {"replicas": 9}})).body
    assert (main["status"], main["spec"]["replicas"]) == ({"replicas": 3}, 4)
    assert (await api.get(f"{path}/status")).body["status"] == {"replicas": 3}


async def test_scale_reads_and_writes_the_replicas(api: Api) -> None:
    await api.post(DEPLOYMENTS, deployment(replicas=2))
    path = f"{DEPLOYMENTS}/web/scale"
    scale = (await api.get(path)).body
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 2}, "app=web")
    scale["spec"]["replicas"] = 3
    assert (await api.put(path, scale)).body["spec"]["replicas"] == 3
    stale = await api.put(path, scale | {"spec": {"replicas": 4}})
    assert stale.status == 409
    assert (await api.patch(path, {"spec": {"replicas": 0}})).body["spec"] == {"replicas": 0}
    parent = (await api.get(f"{DEPLOYMENTS}/web")).body
    assert (parent["spec"]["replicas"], parent["metadata"]["generation"]) == (0, 3)


# --- patch ------------------------------------------------------------------------------------------------------


async def test_merge_patch_removes_with_null(api: Api) -> None:
    await api.post(CMS, cm(x="1", y="2"))
    answer = await api.patch(f"{CMS}/a", {"data": {"x": None, "z": "3"}})
    assert (answer.status, answer.body["data"]) == (200, {"y": "2", "z": "3"})


async def test_json_patch_applies_in_order_or_not_at_all(api: Api) -> None:
    await api.post(CMS, cm(x="1"))
    path, kind = f"{CMS}/a", "json-patch+json"
    good: list[dict[str, Any]] = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/data/y", "value": "2"},
        {"op": "move", "from": "/data/y", "path": "/data/a~1b"},
        {"op": "copy", "from": "/data/x", "path": "/data/z"},
        {"op": "replace", "path": "/data/x", "value": "9"},
        {"op": "remove", "path": "/data/z"},
    ]
    assert (await api.patch(path, good, kind)).body["data"] == {"x": "9", "a/b": "2"}
    failed = await api.patch(path, [{"op": "test", "path": "/data/x", "value": "0"}], kind)
    assert (failed.status, failed.body["reason"]) == (422, "Invalid")
    many = await api.patch(path, good * 2000, kind)
    assert many.status == 413


async def test_strategic_merge_patch_merges_lists_by_key(api: Api) -> None:
    await api.post(DEPLOYMENTS, deployment())
    side = {"name": "side", "image": "s:1"}
    patch = {"spec": {"template": {"spec": {"containers": [side, {"name": "c", "image": "nginx:2"}]}}}}
    answer = await api.patch(f"{DEPLOYMENTS}/web", patch, "strategic-merge-patch+json")
    containers = answer.body["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("c", "nginx:2"), ("side", "s:1")]
    assert containers[0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    remove = {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}
    answer = await api.patch(f"{DEPLOYMENTS}/web", remove, "strategic-merge-patch+json")
    assert len(answer.body["spec"]["template"]["spec"]["containers"]) == 1


async def test_a_patch_that_carries_a_version_is_an_optimistic_lock(api: Api) -> None:
    created = (await api.post(CMS, cm())).body
    version = created["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"x": "1"}}
    assert (await api.patch(f"{CMS}/a", patch)).status == 200
    assert (await api.patch(f"{CMS}/a", patch)).status == 409


async def test_concurrent_patches_without_a_version_all_succeed(api: Api) -> None:
    await api.post(CMS, cm())
    answers = await asyncio.gather(*(api.patch(f"{CMS}/a", {"data": {f"k{n}": "v"}}) for n in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert len((await api.get(f"{CMS}/a")).body["data"]) == 10


async def test_patch_refusals(api: Api) -> None:
    await api.post(CMS, cm())
    assert (await api.patch(f"{CMS}/a", {}, "unknown+json")).status == 415
    assert (await api.patch(f"{CMS}/a?force=true", {})).status == 422
    assert (await api.patch(f"{CMS}/absent", {})).status == 404
    renamed = await api.patch(f"{CMS}/a", {"metadata": {"name": "b"}})
    assert renamed.status == 400


async def test_dry_run_stores_nothing(api: Api) -> None:
    answer = await api.post(f"{CMS}?dryRun=All", cm())
    assert answer.status == 201
    assert "resourceVersion" not in answer.body["metadata"]
    assert (await api.get(f"{CMS}/a")).status == 404
    created = (await api.post(CMS, cm(x="1"))).body
    patched = (await api.patch(f"{CMS}/a?dryRun=All", {"data": {"x": "2"}})).body
    assert (patched["data"], patched["metadata"]["resourceVersion"]) == (
        {"x": "2"},
        created["metadata"]["resourceVersion"],
    )
    assert (await api.delete(f"{CMS}/a?dryRun=All")).status == 200
    assert (await api.get(f"{CMS}/a")).body == created
    assert (await api.post(f"{CMS}?dryRun=Some", cm("b"))).status == 422


# --- server-side apply ------------------------------------------------------------------------------------------


async def apply(api: Api, path: str, config: Any, manager: str = "m1", **query: str) -> Any:
    params = {"fieldManager": manager, **query}
    return await api.patch(path, config, "apply-patch+yaml", params=params)


async def test_apply_creates_updates_and_removes_what_it_owned(api: Api) -> None:
    path = f"{CMS}/a"
    assert (await apply(api, path, cm(x="1", y="2"))).status == 201
    await api.patch(path, {"data": {"z": "9"}})
    answer = await apply(api, path, cm(x="1"))
    assert (answer.status, answer.body["data"]) == (200, {"x": "1", "z": "9"})
    again = await apply(api, path, cm(x="1"))
    assert again.body["metadata"]["resourceVersion"] == answer.body["metadata"]["resourceVersion"]
    entries = {entry["manager"]: entry for entry in answer.body["metadata"]["managedFields"]}
    assert entries["m1"]["operation"] == "Apply"
    assert entries["m1"]["fieldsV1"] == {"f:data": {"f:x": {}}}


async def test_apply_of_anothers_field_conflicts_unless_forced(api: Api) -> None:
    path = f"{CMS}/a"
    await apply(api, path, cm(x="1"), "one")
    answer = await apply(api, path, cm(x="2"), "two")
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert 'conflict with "one"' in answer.body["message"]
    assert answer.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one" using v1', "field": ".data.x"}
    ]
    assert (await apply(api, path, cm(x="1"), "three")).status == 200  # equal values are shared
    forced = await apply(api, path, cm(x="2"), "two", force="true")
    assert forced.body["data"] == {"x": "2"}
    owners = [entry["manager"] for entry in forced.body["metadata"]["managedFields"]]
    assert owners == ["two"]


async def test_apply_merges_lists_by_key_and_drops_its_own_elements(api: Api) -> None:
    path = f"{DEPLOYMENTS}/web"
    config = deployment()
    containers = config["spec"]["template"]["spec"]["containers"]
    containers.append({"name": "side", "image": "s:1"})
    await apply(api, path, config)
    containers.pop()
    answer = await apply(api, path, config)
    assert [c["name"] for c in answer.body["spec"]["template"]["spec"]["containers"]] == ["c"]


async def test_apply_keeps_an_element_in_which_another_owns_a_field(api: Api) -> None:
    path = f"{DEPLOYMENTS}/web"
    config = deployment()
    containers = config["spec"]["template"]["spec"]["containers"]
    containers.append({"name": "side", "image": "s:1"})
    await apply(api, path, config)
    env = {"spec": {"template": {"spec": {"containers": [{"name": "side", "workingDir": "/w"}]}}}}
    await api.patch(path, env, "strategic-merge-patch+json")
    containers.pop()
    answer = await apply(api, path, config)
    side = answer.body["spec"]["template"]["spec"]["containers"][1]
    assert (side["name"], side["workingDir"], "image" in side) == ("side", "/w", False)


async def test_apply_refusals(api: Api) -> None:
    path = f"{CMS}/a"
    assert (await api.patch(path, cm(), "apply-patch+yaml")).status == 422  # no fieldManager
    managed = cm()
    managed["metadata"]["managedFields"] = [{"manager": "x"}]
    assert (await apply(api, path, managed)).status == 400
    assert (await apply(api, path, cm() | {"apiVersion": ""})).status == 400
    assert (await apply(api, path, cm("b"))).status == 400


async def test_updates_record_their_manager(api: Api) -> None:
    created = (await api.post(f"{CMS}?fieldManager=maker", cm(x="1"))).body
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["fieldsV1"]) == (
        "maker",
        "Update",
        {"f:data": {"f:x": {}}},
    )
    changed = (await api.patch(f"{CMS}/a?fieldManager=other", {"data": {"x": "2"}})).body
    assert [entry["manager"] for entry in changed["metadata"]["managedFields"]] == ["other"]
    cleared = (await api.patch(f"{CMS}/a", {"metadata": {"managedFields": [{}]}})).body
    assert "managedFields" not in cleared["metadata"]


# --- delete -----------------------------------------------------------------------------------------------------


async def test_delete_answers_a_status_with_the_uid(api: Api) -> None:
    created = (await api.post(DEPLOYMENTS, deployment())).body
    answer = await api.delete(f"{DEPLOYMENTS}/web", {"propagationPolicy": "Background"})
    assert answer.status == 200
    assert answer.body["status"] == "Success"
    details = {"name": "web", "group": "apps", "kind": "deployments", "uid": created["metadata"]["uid"]}
    assert answer.body["details"] == details
    assert (await api.delete(f"{DEPLOYMENTS}/web")).status == 404


async def test_finalizers_hold_back_a_deletion(api: Api) -> None:
    body = cm()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.post(CMS, body)
    marked = await api.delete(f"{CMS}/a")
    assert (marked.status, marked.body["kind"]) == (200, "ConfigMap")
    assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 0
    again = await api.delete(f"{CMS}/a")
    assert again.body["metadata"]["resourceVersion"] == marked.body["metadata"]["resourceVersion"]
    created = await api.post(CMS, cm())
    assert created.body["message"] == 'object is being deleted: configmaps "a" already exists'
    async with api.watch(CMS, resourceVersion=marked.body["metadata"]["resourceVersion"]) as watch:
        released = await api.patch(f"{CMS}/a", {"metadata": {"finalizers": None}})
        assert (released.status, released.body["metadata"]["name"]) == (200, "a")
        event = await watch.next()
        assert event is not None
        assert event["type"] == "DELETED"
    assert (await api.get(f"{CMS}/a")).status == 404


async def test_delete_preconditions_name_both_values(api: Api) -> None:
    await api.post(CMS, cm())
    for preconditions in ({"uid": "other"}, {"resourceVersion": "1"}):
        answer = await api.delete(f"{CMS}/a", {"preconditions": preconditions})
        assert (answer.status, answer.body["reason"]) == (409, "Conflict")
        assert 'ConfigMap "a"' in answer.body["message"]
    version = (await api.get(f"{CMS}/a")).body["metadata"]["resourceVersion"]
    assert (await api.delete(f"{CMS}/a", {"preconditions": {"resourceVersion": version}})).status == 200


async def test_a_running_pod_is_deleted_gracefully(api: Api) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": []},
    }
    await api.post(PODS, body)
    marked = (await api.delete(f"{PODS}/p")).body
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    shorter = (await api.delete(f"{PODS}/p?gracePeriodSeconds=5")).body
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = (await api.delete(f"{PODS}/p?gracePeriodSeconds=60")).body
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    gone = await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert (gone.status, gone.body["kind"]) == (200, "Pod")
    assert (await api.get(f"{PODS}/p")).status == 404


async def test_an_unscheduled_pod_goes_at_once(api: Api) -> None:
    await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    assert (await api.delete(f"{PODS}/p")).body["metadata"]["name"] == "p"
    assert (await api.get(f"{PODS}/p")).status == 404


async def test_delete_options_are_checked(api: Api) -> None:
    await api.post(CMS, cm())
    both = {"propagationPolicy": "Orphan", "orphanDependents": True}
    assert (await api.delete(f"{CMS}/a", both)).status == 422
    assert (await api.delete(f"{CMS}/a", {"propagationPolicy": "Sideways"})).status == 422


async def test_deletecollection_deletes_the_selection_and_lists_it(api: Api) -> None:
    for name in ("a", "b", "c"):
        body = cm(name)
        body["metadata"]["labels"] = {"keep": "yes"} if name == "c" else {"keep": "no"}
        await api.post(CMS, body)
    answer = await api.delete(f"{CMS}?labelSelector=keep%3Dno")
    assert (answer.status, answer.body["kind"]) == (200, "ConfigMapList")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "b"]
    left = (await api.get(CMS)).body["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


# --- pods, secrets, namespaces ----------------------------------------------------------------------------------


async def test_binding_sets_the_node_once(api: Api) -> None:
    await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"name": "n1"}}
    assert (await api.post(f"{PODS}/p/binding", binding)).status == 201
    assert (await api.get(f"{PODS}/p")).body["spec"]["nodeName"] == "n1"
    assert (await api.post(f"{PODS}/p/binding", binding)).status == 409


async def test_eviction_deletes(api: Api) -> None:
    await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert (await api.post(f"{PODS}/p/eviction", eviction)).status == 201
    assert (await api.get(f"{PODS}/p")).status == 404


async def test_string_data_of_a_secret_is_encoded(api: Api) -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"k": "v"}}
    answer = await api.post("/api/v1/namespaces/default/secrets", body)
    assert (answer.body["data"], answer.body["type"]) == ({"k": "dg=="}, "Opaque")
    assert "stringData" not in answer.body


async def test_system_namespaces_exist_and_cannot_be_deleted(api: Api) -> None:
    answer = await api.get("/api/v1/namespaces")
    names = [item["metadata"]["name"] for item in answer.body["items"]]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert answer.body["items"][0]["metadata"]["labels"] == {"kubernetes.io/metadata.name": "default"}
    assert answer.body["items"][0]["status"] == {"phase": "Active"}
    refused = await api.delete("/api/v1/namespaces/default")
    assert refused.status == 403
    assert refused.body["message"].endswith("this namespace may not be deleted")


async def test_create_in_an_absent_namespace_is_404(api: Api) -> None:
    answer = await api.post("/api/v1/namespaces/nowhere/configmaps", cm())
    assert (answer.status, answer.body["message"]) == (404, 'namespaces "nowhere" not found')


async def test_a_deleted_namespace_is_emptied_and_goes(api: Api) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "n1"}})
    held = cm("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    for body in (cm("free"), held):
        assert (await api.post("/api/v1/namespaces/n1/configmaps", body)).status == 201
    marked = await api.delete("/api/v1/namespaces/n1")
    assert marked.body["status"]["phase"] == "Terminating"
    refused = await api.post("/api/v1/namespaces/n1/configmaps", cm("late"))
    assert refused.status == 403
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    version = marked.body["metadata"]["resourceVersion"]
    async with api.watch("/api/v1/namespaces", resourceVersion=version) as watch:
        await api.patch("/api/v1/namespaces/n1/configmaps/held", {"metadata": {"finalizers": None}})
        while (event := await watch.next(10)) is not None and event["type"] != "DELETED":
            pass
        assert event is not None
        assert event["object"]["metadata"]["name"] == "n1"
    assert (await api.get("/api/v1/namespaces/n1/configmaps")).body["items"] == []


async def test_a_namespace_is_gone_once_finalized_by_a_client(api: Api) -> None:
    created = (await api.post("/api/v1/namespaces", {"metadata": {"name": "n2"}})).body
    kept = await api.put("/api/v1/namespaces/n2/finalize", created)
    assert (kept.status, kept.body["spec"]["finalizers"]) == (200, ["kubernetes"])


async def test_objects_are_laid_out_as_the_original_does(api: Api, backend: Any) -> None:
    await api.post("/api/v1/namespaces/default/services", {"metadata": {"name": "s"}, "spec": {}})
    await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    await api.post("/api/v1/namespaces/default/endpoints", {"metadata": {"name": "e"}})
    await api.post(DEPLOYMENTS, deployment())
    found = await backend.range(b"/registry/", b"/registry0", keys_only=True)
    keys = [kv.key.decode() for kv in found.kvs]
    for key in (
        "/registry/services/specs/default/s",
        "/registry/minions/n",
        "/registry/services/endpoints/default/e",
        "/registry/deployments/default/web",
        "/registry/namespaces/default",
    ):
        assert key in keys
    stored = await backend.range(b"/registry/minions/n")
    assert json.loads(stored.kvs[0].value)["kind"] == "Node"
