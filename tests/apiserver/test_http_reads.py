"""Lists, watches, tables, discovery and health over HTTP (contract §1, §3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apiserver_adapter.app import ApiServer
from kvorum.backends import RemoteBackend
from tests.apiserver.conftest import Api, serving
from tests.watchcache.fake import FakeBackend
from watchcache.backend import NoSpace, Unavailable
from watchcache.options import ContinueToken

CMS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


async def make(api: Api, name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": {"name": name}, "data": data}
    if labels:
        body["metadata"]["labels"] = labels
    answer = await api.post(CMS, body)
    assert answer.status == 201
    created: dict[str, Any] = answer.body
    return created


def version_of(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(answer_body: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in answer_body["items"]]


# --- lists ------------------------------------------------------------------------------------------------------


async def test_a_list_has_kind_version_and_items_with_theirs(api: Api) -> None:
    empty = (await api.get(CMS)).body
    assert (empty["kind"], empty["apiVersion"], empty["items"]) == ("ConfigMapList", "v1", [])
    await make(api, "b")
    await make(api, "a")
    body = (await api.get(CMS)).body
    assert names(body) == ["a", "b"]
    assert body["items"][0]["kind"] == "ConfigMap"
    assert int(version_of(body)) >= int(version_of(body["items"][0]))
    assert names((await api.get("/api/v1/configmaps")).body) == ["a", "b"]


async def test_pages_continue_until_the_token_is_gone(api: Api) -> None:
    for name in "abcde":
        await make(api, name)
    page = (await api.get(f"{CMS}?limit=2")).body
    assert (names(page), page["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    seen, version = names(page), version_of(page)
    while token := page["metadata"].get("continue"):
        page = (await api.get(CMS, params={"limit": "2", "continue": token})).body
        assert version_of(page) == version
        seen += names(page)
    assert seen == list("abcde")


async def test_a_large_list_is_streamed_and_complete(api: Api, backend: RemoteBackend) -> None:
    from watchcache.backend import Put

    puts = [
        Put(
            b"/registry/configmaps/default/m%04d" % n,
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%04d","namespace":"default"}}' % n,
        )
        for n in range(1500)
    ]
    for first in range(0, 1500, 100):
        await backend.txn([], puts[first : first + 100])
    body = (await api.get(CMS)).body
    assert len(body["items"]) == 1500
    assert body["items"][1499]["metadata"]["name"] == "m1499"


async def test_selectors_narrow_lists(api: Api) -> None:
    await make(api, "a", {"app": "x"})
    await make(api, "b")
    assert names((await api.get(f"{CMS}?labelSelector=app%3Dx")).body) == ["a"]
    assert names((await api.get(f"{CMS}?labelSelector=!app")).body) == ["b"]
    assert names((await api.get(f"{CMS}?fieldSelector=metadata.name%3Db")).body) == ["b"]
    assert names((await api.get(f"{CMS}?fieldSelector=metadata.namespace%3Dother")).body) == []


@pytest.mark.parametrize(
    ("query", "code", "reason", "text"),
    [
        ("resourceVersion=abc", 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=-1", 400, "BadRequest", "invalid resource version"),
        ("continue=junk", 400, "BadRequest", "invalid continue token"),
        ("labelSelector=a%20b", 400, "BadRequest", "expected"),
        ("fieldSelector=spec.x%3D1", 400, "BadRequest", "is not a known field selector"),
        ("resourceVersionMatch=Exact", 422, "Invalid", 'ListOptions.meta.k8s.io "" is invalid'),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422, "Invalid", "forbidden"),
        ("resourceVersion=5&resourceVersionMatch=Newest", 422, "Invalid", "supported values"),
        ("sendInitialEvents=true", 422, "Invalid", "sendInitialEvents"),
        ("limit=x", 400, "BadRequest", "invalid syntax"),
    ],
)
async def test_bad_list_options(api: Api, query: str, code: int, reason: str, text: str) -> None:
    answer = await api.get(f"{CMS}?{query}")
    assert (answer.status, answer.body["reason"]) == (code, reason)
    assert text in answer.body["message"]


async def test_bad_versions_of_get_and_watch_are_500(api: Api) -> None:
    await make(api, "a")
    for path in (f"{CMS}/a?resourceVersion=abc", f"{CMS}?watch=1&resourceVersion=abc"):
        answer = await api.get(path)
        assert (answer.status, answer.body.get("reason", "")) == (500, "")
        assert "strconv.ParseUint" in answer.body["message"]


async def test_a_future_version_is_504_with_its_cause(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    answer = await api.get(f"{CMS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan")
    assert (answer.status, answer.body["reason"]) == (504, "Timeout")
    assert answer.body["message"].startswith("Timeout: Too large resource version: 999999, current: ")
    assert answer.body["details"]["causes"] == [
        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    ]


async def test_compacted_lists_are_410_and_a_continue_offers_to_go_on(api: Api, backend: RemoteBackend) -> None:
    for name in "abc":
        last = await make(api, name)
    old = int(version_of(last)) - 1
    page = (await api.get(f"{CMS}?limit=1")).body
    revision = int(version_of(await make(api, "d")))
    await backend.compact(revision)
    answer = await api.get(f"{CMS}?resourceVersion={old}&resourceVersionMatch=Exact")
    assert (answer.status, answer.body["reason"]) == (410, "Expired")
    assert "details" not in answer.body
    answer = await api.get(CMS, params={"limit": "1", "continue": page["metadata"]["continue"]})
    assert (answer.status, answer.body["reason"]) == (410, "Expired")
    token = answer.body["metadata"]["continue"]
    assert ContinueToken.decode(token) == ContinueToken(-1, "a\0")
    rest = (await api.get(CMS, params={"continue": token})).body
    assert names(rest) == ["b", "c", "d"]


# --- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_from_the_list_version_follows_a_life(api: Api) -> None:
    listed = (await api.get(CMS)).body
    async with api.watch(CMS, resourceVersion=version_of(listed)) as watch:
        assert watch.response.headers["Content-Type"] == "application/json"
        assert watch.response.headers["Transfer-Encoding"] == "chunked"
        created = await make(api, "a", x="1")
        changed = (await api.patch(f"{CMS}/a", {"data": {"x": "2"}})).body
        await api.delete(f"{CMS}/a")
        added, modified, deleted = await watch.take(3)
    assert (added["type"], added["object"]) == ("ADDED", created)
    assert (modified["type"], modified["object"]) == ("MODIFIED", changed)
    assert deleted["type"] == "DELETED"
    assert deleted["object"]["data"] == {"x": "2"}
    assert int(version_of(deleted["object"])) > int(version_of(changed))


async def test_a_watch_sends_its_headers_before_any_event(api: Api) -> None:
    version = version_of((await api.get(CMS)).body)
    async with asyncio.timeout(2), api.watch(CMS, resourceVersion=version) as watch:
        assert watch.response.status == 200


async def test_a_single_name_and_the_watch_prefix_watch_one_object(api: Api) -> None:
    await make(api, "a")
    await make(api, "b")
    async with api.watch(f"{CMS}/a", resourceVersion=0) as watch:
        event = await watch.next()
        assert event is not None
        assert event["object"]["metadata"]["name"] == "a"
        assert await watch.silent()
    async with api.session.get(
        f"{api.url}/api/v1/watch/namespaces/default/configmaps/b?resourceVersion=0"
    ) as response:
        line = await asyncio.wait_for(response.content.readline(), 5)
        assert b'"name":"b"' in line
    answer = await api.get(f"{CMS}/a?watch=1&fieldSelector=metadata.name%3Db")
    assert answer.status == 400


async def test_a_watch_list_ends_its_state_with_the_annotated_bookmark(api: Api) -> None:
    await make(api, "a")
    await make(api, "b")
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(CMS, **options) as watch:
        events = await watch.take(3)
        assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
        mark = events[2]["object"]
        assert (mark["kind"], mark["apiVersion"]) == ("ConfigMap", "v1")
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await make(api, "c")
        (event,) = await watch.take(1)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "c")


@pytest.mark.parametrize(
    "query",
    [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x",
    ],
)
async def test_contradictory_watch_options_are_422(api: Api, query: str) -> None:
    answer = await api.get(f"{CMS}?watch=1&{query}")
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")


async def test_timeout_seconds_ends_a_watch_cleanly(api: Api) -> None:
    version = version_of((await api.get(CMS)).body)
    async with api.watch(CMS, resourceVersion=version, timeoutSeconds=1) as watch:
        assert await watch.next(3) is None


async def test_a_watch_from_before_the_window_gets_410_in_the_stream(api: Api) -> None:
    """The cache lists at its start: whatever is older than that is out of its window."""
    async with api.watch(CMS, resourceVersion=1) as watch:
        event = await watch.next()
        assert event is not None
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert event["object"]["message"].startswith("too old resource version: 1 (")
        assert await watch.next() is None


async def test_a_compacted_watch_without_a_cache_gets_410_in_the_stream(api: Api, backend: RemoteBackend) -> None:
    events = "/api/v1/namespaces/default/events"
    first = await api.post(events, {"metadata": {"name": "e1"}, "involvedObject": {"name": "x"}})
    second = await api.post(events, {"metadata": {"name": "e2"}, "involvedObject": {"name": "y"}})
    await backend.compact(int(version_of(second.body)))
    async with api.watch(events, resourceVersion=int(version_of(first.body)) - 1) as watch:
        event = await watch.next()
        assert event is not None
        assert event["object"]["message"] == "The resourceVersion for the provided watch is too old."
        assert await watch.next() is None
    found = await api.get(f"{events}?fieldSelector=involvedObject.name%3Dy")
    assert names(found.body) == ["e2"]


async def test_a_future_watch_list_gets_504_in_the_stream(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    options = {"resourceVersion": 99999999, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with api.watch(CMS, **options) as watch:
        event = await watch.next()
        assert event is not None
        assert (event["type"], event["object"]["code"]) == ("ERROR", 504)
        assert event["object"]["details"]["retryAfterSeconds"] == 1


async def test_leaving_the_selection_is_deleted(api: Api) -> None:
    await make(api, "a", {"app": "x"})
    version = version_of((await api.get(CMS)).body)
    async with api.watch(CMS, resourceVersion=version, labelSelector="app=x") as watch:
        await api.patch(f"{CMS}/a", {"metadata": {"labels": {"app": "y"}}})
        await api.patch(f"{CMS}/a", {"metadata": {"labels": {"app": "x"}}})
        events = await watch.take(2)
    assert [event["type"] for event in events] == ["DELETED", "ADDED"]
    assert events[0]["object"]["metadata"]["labels"] == {"app": "x"}


async def test_a_client_that_goes_away_leaves_no_watcher_behind(api: Api) -> None:
    cacher = api.server.cachers["configmaps"]
    before = cacher.statistics().watchers
    version = version_of((await api.get(CMS)).body)
    async with api.watch(CMS, resourceVersion=version):
        assert cacher.statistics().watchers == before + 1
    for _ in range(100):
        if cacher.statistics().watchers == before:
            break
        await asyncio.sleep(0.02)
    assert cacher.statistics().watchers == before


async def test_many_watchers_all_see_all_events_in_order(api: Api) -> None:
    version = version_of((await api.get(CMS)).body)

    async def follow() -> list[str]:
        async with api.watch(CMS, resourceVersion=version) as watch:
            return [event["object"]["metadata"]["name"] for event in await watch.take(30)]

    followers = [asyncio.create_task(follow()) for _ in range(10)]
    await asyncio.sleep(0.1)
    for number in range(30):
        await make(api, f"n{number:02}")
    expected = [f"n{number:02}" for number in range(30)]
    assert await asyncio.gather(*followers) == [expected] * 10


# --- representations --------------------------------------------------------------------------------------------


async def test_tables_for_lists_objects_and_watches(api: Api) -> None:
    await make(api, "a", x="1", y="2")
    table = (await api.get(CMS, headers={"Accept": TABLE})).body
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:2] == ["a", 2]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    full = (await api.get(f"{CMS}?includeObject=Object", headers={"Accept": TABLE})).body
    assert full["rows"][0]["object"]["data"] == {"x": "1", "y": "2"}
    bare = (await api.get(f"{CMS}/a?includeObject=None", headers={"Accept": TABLE})).body
    assert "object" not in bare["rows"][0]
    query = "watch=1&resourceVersion=0&timeoutSeconds=2"
    async with api.session.get(f"{api.url}{CMS}?{query}", headers={"Accept": TABLE}) as response:
        line = await asyncio.wait_for(response.content.readline(), 5)
        assert b'"kind":"Table"' in line
        assert b'"columnDefinitions":[{' in line
        await make(api, "b")
        assert b'"columnDefinitions":[]' in await asyncio.wait_for(response.content.readline(), 5)


async def test_partial_object_metadata_has_no_data(api: Api) -> None:
    await make(api, "a", x="1")
    body = (await api.get(CMS, headers={"Accept": PARTIAL})).body
    assert body["kind"] == "PartialObjectMetadataList"
    assert set(body["items"][0]) == {"kind", "apiVersion", "metadata"}


async def test_an_unknown_transform_skips_its_clause(api: Api) -> None:
    accept = "application/json;as=Graph;v=v1;g=meta.k8s.io,application/json"
    assert (await api.get(CMS, headers={"Accept": accept})).body["kind"] == "ConfigMapList"
    protobuf = "application/vnd.kubernetes.protobuf,application/json"
    assert (await api.get(CMS, headers={"Accept": protobuf})).body["kind"] == "ConfigMapList"


async def test_curl_gets_indented_json(api: Api) -> None:
    async with api.session.get(api.url + CMS, headers={"User-Agent": "curl/8"}) as response:
        assert b'\n  "kind": "ConfigMapList"' in await response.read()


# --- discovery, openapi, reviews --------------------------------------------------------------------------------


async def test_plain_discovery(api: Api) -> None:
    assert (await api.get("/api/")).body["versions"] == ["v1"]
    groups = (await api.get("/apis")).body["groups"]
    assert {"apps", "coordination.k8s.io"} <= {group["name"] for group in groups}
    assert (await api.get("/apis/apps")).body["preferredVersion"]["groupVersion"] == "apps/v1"
    core = {item["name"]: item for item in (await api.get("/api/v1")).body["resources"]}
    assert core["configmaps"]["shortNames"] == ["cm"]
    assert core["namespaces"]["namespaced"] is False
    assert "pods/status" in core
    apps = {item["name"]: item for item in (await api.get("/apis/apps/v1")).body["resources"]}
    scale = apps["deployments/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_aggregated_discovery_has_an_etag(api: Api, version: str) -> None:
    accept = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList,application/json"
    answer = await api.get("/apis", headers={"Accept": accept})
    assert answer.headers["Content-Type"].endswith("as=APIGroupDiscoveryList")
    apps = next(item for item in answer.body["items"] if item["metadata"].get("name") == "apps")
    deployments = next(r for r in apps["versions"][0]["resources"] if r["resource"] == "deployments")
    assert deployments["scope"] == "Namespaced"
    assert {sub["subresource"] for sub in deployments["subresources"]} == {"scale", "status"}
    again = await api.get("/apis", headers={"Accept": accept, "If-None-Match": answer.headers["ETag"]})
    assert again.status == 304
    core = (await api.get("/api", headers={"Accept": accept})).body["items"]
    assert [item["metadata"] for item in core] == [{}]


async def test_openapi_v3_has_a_patch_with_field_validation_for_every_kind(api: Api) -> None:
    index = (await api.get("/openapi/v3")).body["paths"]
    for kind in api.server.registry:
        entry = index[f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"]
        document = (await api.get(entry["serverRelativeURL"])).body
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        patches = [path["patch"] for path in document["paths"].values() if "patch" in path]
        (patch,) = [found for found in patches if found["x-kubernetes-group-version-kind"] == gvk]
        assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert (await api.get("/openapi/v2")).status == 404


async def test_version_names_a_minor_that_kubectl_has(api: Api) -> None:
    body = (await api.get("/version/")).body
    assert (body["major"], body["minor"]) == ("1", "32")
    assert body["gitVersion"].startswith("v1.32")
    assert body["platform"]


async def test_metrics_count_requests_and_describe_the_caches(api: Api) -> None:
    await make(api, "a")
    await api.get(f"{CMS}/missing")
    await api.get("/api/v1/nothing-of-ours")
    text = (await api.get("/metrics")).text
    assert 'apiserver_request_total{verb="POST",group="",resource="configmaps",code="201"} 1' in text
    assert 'apiserver_request_total{verb="GET",group="",resource="configmaps",code="404"} 1' in text
    assert "nothing-of-ours" not in text
    assert 'apiserver_watch_cache_capacity{resource="configmaps"} 100' in text
    assert 'apiserver_request_duration_seconds_bucket{verb="POST",le="+Inf"} 1' in text


async def test_reviews_allow_everything(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    body = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    answer = await api.post(path, body)
    assert (answer.status, answer.body["status"]["allowed"]) == (201, True)
    assert (await api.get(path)).status == 405


# --- health and a store in trouble ------------------------------------------------------------------------------


async def test_health_paths(api: Api) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        answer = await api.get(path)
        assert (answer.status, answer.body) == (200, "ok")
    verbose = (await api.get("/readyz?verbose")).text
    assert "[+]etcd ok" in verbose
    assert verbose.endswith("readyz check passed\n")
    assert "[+]etcd excluded: ok" in (await api.get("/readyz?verbose&exclude=etcd")).text
    assert (await api.get("/livez/etcd")).text == "ok"
    assert (await api.get("/livez/nope")).status == 404


async def test_a_lost_store_shows_in_health_and_leaves_cached_reads_alone() -> None:
    backend = FakeBackend()
    async with serving(ApiServer(backend)) as api:
        await make(api, "a")
        listed = version_of((await api.get(CMS)).body)
        backend.fail = Unavailable("etcdserver: request timed out")
        backend.interrupt()
        answer = await api.get("/readyz")
        assert answer.status == 500
        assert "[-]etcd failed: reason withheld" in answer.text
        assert answer.text.endswith("readyz check failed\n")
        assert names((await api.get(f"{CMS}?resourceVersion=0")).body) == ["a"]
        assert (await api.get(f"{CMS}/a?resourceVersion={listed}")).status == 200
        for refused in (await api.get(CMS), await api.get(f"{CMS}/a"), await api.delete(f"{CMS}/a")):
            assert (refused.status, refused.body["message"]) == (500, "etcdserver: request timed out")
        async with api.watch(CMS) as watch:
            event = await watch.next()
            assert event is not None
            assert (event["type"], event["object"]["code"]) == ("ERROR", 500)
        async with api.watch(CMS, resourceVersion=listed) as watch:
            backend.fail = None
            await make(api, "b")
            event = await watch.next()
            assert event is not None
            assert event["object"]["metadata"]["name"] == "b"


async def test_a_full_store_refuses_writes_with_its_own_text() -> None:
    backend = FakeBackend()
    async with serving(ApiServer(backend)) as api:
        backend.fail = NoSpace("etcdserver: mvcc: database space exceeded")
        answer = await api.post(CMS, {"metadata": {"name": "a"}})
        assert (answer.status, answer.body["message"]) == (500, "etcdserver: mvcc: database space exceeded")
        assert "reason" not in answer.body


async def test_before_the_first_state_lists_are_429_with_retry_after() -> None:
    backend = FakeBackend()
    backend.fail = Unavailable("etcdserver: no leader")
    async with serving(ApiServer(backend), wait=False) as api:
        for path in (f"{CMS}?resourceVersion=0", f"{CMS}?watch=1&resourceVersion=0"):
            answer = await api.get(path)
            assert (answer.status, answer.body["reason"]) == (429, "TooManyRequests")
            assert answer.headers["Retry-After"] == "1"
            assert answer.body["message"].startswith("storage is (re)initializing")
        assert (await api.get("/readyz")).status == 500
        assert (await api.get("/livez/ping")).status == 200
