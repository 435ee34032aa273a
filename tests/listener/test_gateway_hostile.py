"""The JSON gateway against bodies that are not what they should be: 400, code 3, and the field by its name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from store.api.gateway_json import DEPTH_MAX, check_document
from store.etcdpb import rpc_pb2
from tests.listener.member import loopback
from tests.listener.test_http import Http, b64


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with loopback() as member, aiohttp.ClientSession() as session:
        yield Http(member, session)


async def refusal(http: Http, path: str, body: bytes) -> str:
    async with http.session.post(http.url(path), data=body) as response:
        answer = json.loads(await response.text())
        assert (response.status, answer["code"]) == (400, 3), answer
        assert answer["error"] == answer["message"]
        return str(answer["message"])


@pytest.mark.parametrize(
    ("path", "document", "text"),
    [
        ("kv/put", {"key": "YQ==", "value": "!!"}, "value is not valid base64"),
        ("kv/put", {"key": "YQ=", "value": "YQ=="}, "key is not valid base64"),
        ("kv/put", {"key": "YQ==YQ=="}, "key is not valid base64"),
        ("kv/put", {"key": "Y"}, "key is not valid base64"),
        ("kv/put", {"key": "a+b_"}, "key is not valid base64"),
        ("kv/put", {"key": "YQ==\n"}, "key is not valid base64"),
        ("kv/put", {"key": 1}, "key is not a text: bytes are written as base64"),
        ("kv/put", {"key": ["YQ=="]}, "key is not a text"),
        ("kv/put", {"key": {"a": 1}}, "key is not a text"),
        ("kv/put", {"key": "YQ==", "lease": [1]}, "lease is a list or an object where a single value belongs"),
        ("kv/range", {"key": "YQ==", "rangeEnd": "?"}, "rangeEnd is not valid base64"),
        ("kv/txn", {"compare": 5}, "compare is not a list"),
        ("kv/txn", {"compare": [5]}, "compare[0] is not a JSON object"),
        (
            "kv/txn",
            {"success": [{"request_put": {"key": "YQ==", "value": "?"}}]},
            "request_put.value is not",
        ),
        ("kv/txn", {"success": [{"request_put": "x"}]}, "success[0].request_put is not a JSON object"),
        ("watch", {"create_request": {"key": "?"}}, "create_request.key is not valid base64"),
        ("auth/user/add", {"name": 5}, "name is not a text"),
        ("auth/user/add", {"name": "\ud800"}, "name is not valid Unicode"),
        ("cluster/member/add", {"peerURLs": "http://x"}, "peerURLs is not a list"),
        ("cluster/member/add", {"peerURLs": [1]}, "peerURLs[0] is not a text"),
    ],
)
async def test_a_value_of_the_wrong_kind_is_refused_by_name(
    http: Http, path: str, document: Any, text: str
) -> None:
    message = await refusal(http, f"/v3/{path}", json.dumps(document).encode())
    assert text in message
    assert "object of type" not in message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' * 100_000, "the body is nested too deeply"),
        (b'{"key":"\xff"}', "the body is not UTF-8 text"),
        (b"{not json", "the body is not JSON"),
        (b"5", "the body is not a JSON object"),
        (b'{"limit":' + b"9" * 5000 + b"}", "a number in it is too long"),
        (b'{"limit":99999999999999999999}', "limit"),
        (b'{"limit":"x"}', "limit"),
    ],
)
async def test_a_body_that_is_no_request_is_refused(
    http: Http, body: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert text in await refusal(http, "/v3/kv/range", body)
    assert not [record for record in caplog.records if record.exc_info]


async def test_transactions_within_transactions_have_an_end(http: Http) -> None:
    request: dict[str, Any] = {"success": [{"request_put": {"key": "YQ=="}}]}
    for _ in range(DEPTH_MAX):
        request = {"success": [{"request_txn": request}]}
    assert "nested too deeply" in await refusal(http, "/v3/kv/txn", json.dumps(request).encode())


async def test_a_refused_put_stores_nothing(http: Http) -> None:
    await refusal(http, "/v3/kv/put", b'{"key":"YQ==","value":"!!"}')
    _, answer = await http.post("/v3/kv/range", {"key": b64(b"a")})
    assert "kvs" not in answer


@pytest.mark.parametrize("text", ["", "YQ==", "YQ", "-_8=", "-_8", "+/8=", "YWI", "YWJj"])
async def test_both_alphabets_and_both_paddings_are_taken(http: Http, text: str) -> None:
    assert (await http.post("/v3/kv/put", {"key": "a2V5", "value": text}))[0] == 200


@given(st.binary(max_size=20), st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_what_the_library_writes_is_never_refused(key: bytes, value: bytes, lease: int, preserve: bool) -> None:
    put = rpc_pb2.PutRequest(key=key, value=value, lease=lease)
    compare = rpc_pb2.Compare(key=key, target=rpc_pb2.Compare.MOD)
    txn = rpc_pb2.TxnRequest(
        success=[rpc_pb2.RequestOp(request_put=put)],
        compare=[compare],
    )
    document = json_format.MessageToDict(txn, preserving_proto_field_name=preserve)
    check_document(txn.DESCRIPTOR, document)
    assert json_format.ParseDict(document, rpc_pb2.TxnRequest()) == txn
