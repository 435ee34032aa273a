"""Bodies and parameters that nobody sends by accident: a clear refusal, in the API's words, and at once."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from apiserver_adapter import body
from apiserver_adapter.bounds import DEPTH_MAX
from apiserver_adapter.errors import ApiError
from apiserver_adapter.patch import json_patch
from apiserver_adapter.strategic import strategic_merge
from tests.apiserver.conftest import Answer, Api
from tests.apiserver.test_http_objects import CMS, DEPLOYMENTS, cm, deployment

PYTHON = ("Error", "object", "'int'", "NoneType", "codec", "recursion", "Traceback", "convert", "has no")


def refused(answer: Answer, code: int, text: str) -> None:
    """A Status with that code, in words that are not Python's."""
    assert answer.status == code, answer.text
    message = answer.body["message"]
    assert text in message
    assert not any(word in message.replace("the object", "") for word in PYTHON), message


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"x": value}
    return value


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("media_type", ["json", "yaml", "json-patch+json", "merge-patch+json", "apply-patch+yaml"])
async def test_endless_nesting_is_refused(api: Api, opening: bytes, media_type: str) -> None:
    data, headers = opening * 100_000, {"Content-Type": f"application/{media_type}"}
    if "patch" in media_type:
        answer = await api.request("PATCH", f"{CMS}/a?fieldManager=m", data, headers=headers)
    else:
        answer = await api.request("POST", CMS, data, headers=headers)
    assert answer.status == 400
    assert "nest" in answer.body["message"]
    assert "recursion" not in answer.body["message"]


async def test_what_is_accepted_is_never_too_deep_for_what_follows(api: Api) -> None:
    document = deployment()
    document["spec"]["deep"] = nested(DEPTH_MAX - 3)
    assert (await api.post(DEPLOYMENTS, document)).status == 201
    path = f"{DEPLOYMENTS}/web"
    change = {"spec": {"deep": nested(DEPTH_MAX - 4) | {"y": 1}}}
    for kind in ("merge-patch+json", "strategic-merge-patch+json"):
        assert (await api.patch(path, change, kind)).status == 200
    config = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, **change}
    applied = await api.patch(path, config, "apply-patch+yaml", params={"fieldManager": "m", "force": "true"})
    assert applied.status == 200, applied.text
    assert (
        await api.patch(path, [{"op": "test", "path": "/kind", "value": "Deployment"}], "json-patch+json")
    ).status == 200
    assert (await api.put(path, document)).status == 200
    document["spec"]["deep"] = nested(DEPTH_MAX + 1)
    refused(await api.put(path, document), 400, "nested too deeply")
    copying = [{"op": "copy", "from": "/spec/deep", "path": f"/spec/deep{'/x' * 150}/copy"}]
    refused(await api.patch(path, copying, "json-patch+json"), 400, "nested too deeply")


BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefghijkl"
)
MERGE_BOMB = b"a: &a {k: v}\n" + b"".join(
    b"%c: &%c {<<: [%s]}\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefghijkl"
)
LONG_BOMB = b"a: &a " + b"x" * 1_000_000 + b"\nb: [" + b", ".join([b"*a"] * 1000) + b"]\n"
CHAIN = b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 5000))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (BOMB, "its anchors expand to more than"),
        (MERGE_BOMB, "its anchors expand to more than"),
        (LONG_BOMB, "its anchors expand to more than"),
        (CHAIN, "expand to more than|nested too deeply"),
        (b"a: &a [*a]\n", "an anchor contains itself"),
        (b"a: .inf\n", "Out of range float"),
    ],
    ids=["lists", "merges", "scalar", "chain", "cycle", "infinity"],
)
def test_yaml_that_expands_is_refused_before_it_does(data: bytes, text: str) -> None:
    started = time.process_time()
    with pytest.raises(ApiError, match=text) as caught:
        body.parse_yaml(data)
    assert caught.value.code == 400
    assert time.process_time() - started < 1.0


def test_anchors_within_bounds_work() -> None:
    assert body.parse_yaml(b"a: &a {k: v}\nb: [*a, *a]\nc: {<<: *a, l: w}\n") == {
        "a": {"k": "v"}, "b": [{"k": "v"}, {"k": "v"}], "c": {"k": "v", "l": "w"},
    }  # fmt: skip


async def test_a_lone_surrogate_is_stored_as_the_replacement_character(api: Api) -> None:
    data = b'{"metadata":{"name":"a"},"data":{"k":"a\\ud800b","l":"\\ud83d\\ude00"}}'
    answer = await api.request("POST", CMS, data, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.body["data"]) == (201, {"k": "a\ufffdb", "l": "\U0001f600"})
    patched = await api.request(
        "PATCH", f"{CMS}/a", b'{"data":{"k":"\\udfff"}}', headers={"Content-Type": "application/merge-patch+json"}
    )
    assert patched.body["data"]["k"] == "\ufffd"
    raw = b'{"metadata":{"name":"b"},"data":{"k":"\xff"}}'
    answer = await api.request("POST", CMS, raw, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.body["data"]) == (201, {"k": "\ufffd"})
    yaml = b'metadata: {name: c}\ndata: {k: "\\ud800"}\n'
    answer = await api.request("POST", CMS, yaml, headers={"Content-Type": "application/yaml"})
    assert answer.status == 400 or answer.body["data"] == {"k": "\ufffd"}


async def test_numbers_that_json_cannot_carry_are_refused(api: Api) -> None:
    for number in (b"1e999", b"NaN", b"-Infinity"):
        data = b'{"metadata":{"name":"a"},"x":' + number + b"}"
        answer = await api.request("POST", CMS, data, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.body["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("operations", "code", "text"),
    [
        ({"op": "add"}, 400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        ("x", 400, "json: cannot unmarshal string into Go value of type jsonpatch.Patch"),
        ([5], 400, "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
        ([None], 400, "json: cannot unmarshal null into Go value of type jsonpatch.Operation"),
        ([{"op": "frob"}], 422, "unexpected kind: frob"),
        ([{"op": 5, "path": "/x"}], 422, "an operation has no op"),
        ([{"path": "/x"}], 422, "an operation has no op"),
        ([{"op": "add", "value": 1}], 422, "add operation has no path"),
        ([{"op": "add", "path": 7, "value": 1}], 422, "add operation has no path"),
        ([{"op": "add", "path": "/data/y"}], 422, "add operation for '/data/y' has no value"),
        ([{"op": "copy", "path": "/data/y"}], 422, "copy operation has no from"),
        ([{"op": "move", "path": "/data/y", "from": ["data"]}], 422, "move operation has no from"),
        ([{"op": "remove", "path": "/data/x/y"}], 422, "missing path element 'y'"),
        ([{"op": "remove", "path": ""}], 400, "the patched object is not an object"),
    ],
)
async def test_json_patches_that_are_none(api: Api, operations: Any, code: int, text: str) -> None:
    await api.post(CMS, cm(x="1"))
    answer = await api.patch(f"{CMS}/a", operations, "json-patch+json")
    assert answer.status == code, answer.text
    message = answer.body["message"]
    assert text in message
    assert not any(word in message for word in ("'int'", "NoneType", "not subscriptable", "attribute"))


def test_copies_that_double_are_stopped() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60
    with pytest.raises(ApiError) as caught:
        json_patch({"a": ["x" * 1000]}, doubling)
    assert caught.value.code in (400, 413)
    flat = [{"op": "copy", "from": "/a", "path": f"/b{n}"} for n in range(5000)]
    with pytest.raises(ApiError) as caught:
        json_patch({"a": ["x" * 1000]}, flat)
    assert caught.value.code == 413


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"$retainKeys": 5}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": 5}},
        {"spec": {"$setElementOrder/containers": {"name": "c"}}},
        {"spec": {"$patch": ["replace"]}},
    ],
)
def test_strategic_directives_of_the_wrong_type(patch: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        strategic_merge({"metadata": {}, "spec": {"containers": [{"name": "c"}]}}, patch)
    assert caught.value.code == 400


def token(document: bytes) -> str:
    return base64.urlsafe_b64encode(document).decode().rstrip("=")


@pytest.mark.parametrize(
    "continued",
    [
        token(b"\xff\xfe"),
        token(b'{"v":"meta.k8s.io/v1","rv":5,"start":"\xff"}'),
        token(json.dumps({"v": "meta.k8s.io/v1", "rv": 5, "start": "\ud800"}).encode()),
        token(b'{"v":"meta.k8s.io/v1","rv":true,"start":"a"}'),
        token(b'{"v":"meta.k8s.io/v1","rv":99999999999999999999,"start":"a"}'),
        token(b"[" * 3000),
        token(b"5"),
    ],
)
async def test_continue_tokens_of_nobody(api: Api, continued: str) -> None:
    refused(await api.get(CMS, params={"continue": continued}), 400, "invalid continue token")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=99999999999999999999", 400),
        ("limit=1_0", 400),
        ("limit=" + "9" * 5000, 400),
        ("limit=9223372036854775807", 200),
        ("limit=-5", 200),
        ("resourceVersion=" + "9" * 5000, 400),
        ("resourceVersion=18446744073709551615&resourceVersionMatch=Exact", 504),
        ("resourceVersion=18446744073709551615&limit=1", 504),
    ],
)
async def test_numbers_beyond_all_bounds(api: Api, query: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    answer = await api.get(f"{CMS}?{query}")
    assert answer.status == code, answer.text
    assert "ValueError" not in answer.text


async def test_a_watch_with_an_endless_time_out_is_served(api: Api) -> None:
    async with api.watch(CMS, resourceVersion=0, timeoutSeconds=2**63 - 1) as watch:
        await api.post(CMS, cm())
        assert len(await watch.take(1)) == 1


async def test_names_that_are_no_text_are_not_found(api: Api) -> None:
    port = int(api.url.rsplit(":", 1)[1])
    for path in (b"/api/v1/namespaces/%ff/configmaps/%ed%a0%80", b"/api/v1/namespaces/default/configmaps/%00"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.readline(), 5)
        assert answer.split()[1] in (b"400", b"404"), answer
        writer.close()
        await writer.wait_closed()
