"""Direct writes and what only they do: they are withdrawn, counted and traced without a task."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from store.api.context import ApiContext
from store.api.direct import PUT, TXN, DirectWrite, Write
from store.errors import Code
from store.etcdpb import internal_pb2, rpc_pb2
from store.observations import OK, Method, Observations

METHOD = Method("unary", "etcdserverpb.KV", "Put")
PUT_REQUEST = rpc_pb2.PutRequest(key=b"k", value=b"v")
RANGE = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=b"k"))
OLD_RANGE = rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=b"k", revision=3))
PUT_OP = rpc_pb2.RequestOp(request_put=PUT_REQUEST)


class Replica:
    cluster_id, member_id, term, is_learner, commit_index, applied_index = 1, 2, 3, False, 10, 10

    def __init__(self) -> None:
        self.submitted: list[tuple[bytes, Callable[[Any], None]]] = []
        self.withdrawn = 0

    def submit(self, payload: bytes, done: Callable[[Any], None]) -> Callable[[], None]:
        self.submitted.append((payload, done))

        def withdraw() -> None:
            self.withdrawn += 1

        return withdraw


class Call:
    gone: Callable[[], None] | None = None

    def __init__(self, *names: bytes) -> None:
        self.names = frozenset(names)
        self.answers: list[object] = []

    def carries(self, names: frozenset[bytes]) -> bool:
        return bool(self.names & names)

    def reply(self, data: bytes) -> None:
        self.answers.append(data)

    def refuse(self, code: int, text: str) -> None:
        self.answers.append((code, text))


@pytest.fixture
def api() -> Any:
    machine = SimpleNamespace(sizes=SimpleNamespace(total=0))
    return ApiContext(Replica(), machine, None, observations=Observations())  # type: ignore[arg-type]


def direct(api: ApiContext, write: Write = PUT) -> DirectWrite:
    return DirectWrite(api, write, METHOD, frozenset({b"hasleader"}))


def test_a_write_whose_client_left_is_withdrawn_and_counted_as_cancelled(api: Any) -> None:
    call = Call()
    assert direct(api)(PUT_REQUEST.SerializeToString(), call)
    payload = internal_pb2.InternalRequest.FromString(api.replica.submitted[0][0])
    assert payload.put == PUT_REQUEST
    assert call.gone is not None
    call.gone()
    assert api.replica.withdrawn == 1
    assert api.observations.started[METHOD] == 1
    assert api.observations.handled == {(METHOD, Code.CANCELLED): 1}


def test_an_answer_that_cannot_be_made_is_a_status_and_counted(api: Any) -> None:
    call = Call()
    direct(api)(PUT_REQUEST.SerializeToString(), call)
    api.replica.submitted[0][1](object())  # no result of a put
    assert [answer[0] for answer in call.answers if isinstance(answer, tuple)] == [Code.UNKNOWN]
    assert api.observations.handled == {(METHOD, Code.UNKNOWN): 1}


def test_an_answer_is_counted_with_the_stages_of_its_time(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    api.observations.slow_request_s = 1e-9
    call = Call()
    direct(api)(PUT_REQUEST.SerializeToString(), call)
    api.replica.submitted[0][1](SimpleNamespace(revision=7, prev=None))
    assert rpc_pb2.PutResponse.FromString(call.answers[0]).header.revision == 7  # type: ignore[arg-type]
    assert api.observations.handled == {(METHOD, OK): 1}
    assert "checks 0 ms, agreement and apply" in caplog.text


@pytest.mark.parametrize(
    ("write", "request_"),
    [
        (PUT, rpc_pb2.PutRequest(value=b"no key")),
        (PUT, rpc_pb2.PutRequest(key=b"k", ignore_value=True)),
        (PUT, rpc_pb2.PutRequest(key=b"k", ignore_lease=True)),
        (TXN, rpc_pb2.TxnRequest(success=[RANGE])),
        (TXN, rpc_pb2.TxnRequest(success=[PUT_OP, OLD_RANGE])),
        (TXN, rpc_pb2.TxnRequest(failure=[rpc_pb2.RequestOp(request_txn=rpc_pb2.TxnRequest(success=[PUT_OP]))])),
        (TXN, rpc_pb2.TxnRequest(success=[PUT_OP, PUT_OP])),
        (TXN, rpc_pb2.TxnRequest(success=[PUT_OP] * 129)),
    ],
)
def test_what_may_be_refused_before_it_is_proposed_goes_the_ordinary_way(
    write: Write, request_: Any, api: Any
) -> None:
    assert not direct(api, write)(request_.SerializeToString(), Call())
    assert api.replica.submitted == []
    assert not api.observations.started


def test_what_the_replica_does_not_take_goes_the_ordinary_way(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large, no room, too far behind in applying: it says why when it is asked again."""
    monkeypatch.setattr(Replica, "submit", lambda *_: None)
    assert not direct(api)(PUT_REQUEST.SerializeToString(), Call())
    assert not api.observations.started


@pytest.mark.parametrize("why", ["learner", "full", "metadata", "garbage"])
def test_what_this_member_may_not_take_now_goes_the_ordinary_way(why: str, api: Any) -> None:
    message, call = PUT_REQUEST.SerializeToString(), Call()
    if why == "learner":
        api.replica.is_learner = True
    elif why == "full":
        api.machine.sizes.total = 1 << 40
    elif why == "metadata":
        call = Call(b"hasleader")
    else:
        message = b"\xff"
    assert not direct(api)(message, call)
    assert api.replica.submitted == []


def test_a_transaction_that_writes_is_taken(api: Any) -> None:
    request = rpc_pb2.TxnRequest(success=[PUT_OP, RANGE])
    assert direct(api, TXN)(request.SerializeToString(), Call())
    assert internal_pb2.InternalRequest.FromString(api.replica.submitted[0][0]).txn == request
