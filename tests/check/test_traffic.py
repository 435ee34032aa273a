"""The recorders: what they write down is what was asked and told."""

from __future__ import annotations

import io
from random import Random

import grpc
import pytest

from chaos import wire
from chaos.check import recordfile
from chaos.check.etcd_model import EtcdModel
from chaos.check.history import (
    COMPACTED,
    Answer,
    Chosen,
    Compact,
    Compare,
    Deleted,
    Event,
    Found,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Setting,
    Target,
    Txn,
    WatchRequest,
)
from chaos.traffic.caller import outcome_of
from chaos.traffic.mix import Mix
from chaos.traffic.recorder import Recorder
from store.etcdpb import kv_pb2, rpc_pb2
from tests.check.build import DONE

PREFIX = b"check/"


@pytest.mark.parametrize(
    ("request_", "code", "text", "outcome"),
    [
        (Put(b"a", b"x"), grpc.StatusCode.UNAVAILABLE, "Stream removed", Outcome.UNKNOWN),
        (Put(b"a", b"x"), grpc.StatusCode.DEADLINE_EXCEEDED, "", Outcome.UNKNOWN),
        (Put(b"a", b"x"), grpc.StatusCode.UNKNOWN, "etcdserver: request timed out", Outcome.UNKNOWN),
        (Put(b"a", b"x"), grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", Outcome.UNKNOWN),
        (Put(b"a", b"x"), grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: no space", Outcome.FAILED),
        (Range(b"a"), grpc.StatusCode.DEADLINE_EXCEEDED, "", Outcome.FAILED),
        (Compact(3), grpc.StatusCode.OUT_OF_RANGE, COMPACTED, Outcome.FAILED),
    ],
)
def test_only_what_certainly_was_not_applied_has_failed(
    request_: Request, code: grpc.StatusCode, text: str, outcome: Outcome
) -> None:
    found, answer, error = outcome_of(request_, code, text)
    assert (found, answer) == (outcome, None)
    assert text in error


def test_the_clock_never_shows_a_moment_twice() -> None:
    recorder = Recorder(io.StringIO(), Setting())
    moments = [recorder.now() for _ in range(1000)]
    assert moments == sorted(set(moments))


def test_long_values_are_recorded_as_digests_everywhere() -> None:
    """In the request, the answer and the event alike, or a right store would look wrong."""
    value = b"v" * 5000
    digest = wire.recorded_value(value)
    assert len(digest) < 100
    assert wire.recorded_request(Put(b"a", value)) == Put(b"a", digest)
    assert wire.recorded_request(Txn((), (Put(b"a", value), Range(b"b")))) == Txn(
        (), (Put(b"a", digest), Range(b"b"))
    )
    assert wire.key_value(kv_pb2.KeyValue(key=b"a", value=value)).value == digest
    assert wire.recorded_value(b"short") == b"short"


def test_a_transaction_is_sent_as_it_is_recorded() -> None:
    compares = (
        Compare(b"a", Target.MOD, Relation.EQUAL, 3),
        Compare(b"b", Target.VALUE, Relation.NOT_EQUAL, b"x"),
        Compare(b"c", Target.VERSION, Relation.GREATER, 1),
        Compare(b"d", Target.CREATE, Relation.LESS, 9),
    )
    sent = wire.txn_request(Txn(compares, (Put(b"a", b"y", 7), Range(b"b", b"c", 5)), ()))
    assert [(c.key, c.target, c.result) for c in sent.compare] == [
        (b"a", rpc_pb2.Compare.MOD, rpc_pb2.Compare.EQUAL),
        (b"b", rpc_pb2.Compare.VALUE, rpc_pb2.Compare.NOT_EQUAL),
        (b"c", rpc_pb2.Compare.VERSION, rpc_pb2.Compare.GREATER),
        (b"d", rpc_pb2.Compare.CREATE, rpc_pb2.Compare.LESS),
    ]
    assert (sent.compare[0].mod_revision, sent.compare[1].value, sent.compare[2].version) == (3, b"x", 1)
    assert (sent.success[0].request_put.lease, sent.success[1].request_range.limit) == (7, 5)


def test_an_answer_is_recorded_as_it_came() -> None:
    kv = kv_pb2.KeyValue(key=b"a", value=b"x", create_revision=2, mod_revision=3, version=2, lease=7)
    response = rpc_pb2.TxnResponse(
        header=rpc_pb2.ResponseHeader(revision=9),
        succeeded=True,
        responses=[
            rpc_pb2.ResponseOp(response_range=rpc_pb2.RangeResponse(kvs=[kv], count=4)),
            rpc_pb2.ResponseOp(response_put=rpc_pb2.PutResponse()),
            rpc_pb2.ResponseOp(response_delete_range=rpc_pb2.DeleteRangeResponse(deleted=2)),
        ],
    )
    found = KeyValue(b"a", b"x", 2, 3, 2, 7)
    assert wire.chosen(response) == Answer(9, Chosen(True, (Found((found,), 4), DONE, Deleted(2))))


def test_a_watch_is_asked_for_and_recorded_as_it_came() -> None:
    asked = WatchRequest(1, 1, 0, b"a", b"b", 5, prev_kv=True, no_put=True, fragment=True)
    sent = wire.watch_create(asked)
    assert (sent.start_revision, sent.prev_kv, sent.fragment) == (5, True, True)
    assert list(sent.filters) == [rpc_pb2.WatchCreateRequest.NOPUT]
    kv = kv_pb2.KeyValue(key=b"a", mod_revision=6)
    prev = kv_pb2.KeyValue(key=b"a", value=b"x", create_revision=2, mod_revision=3, version=2)
    message = rpc_pb2.WatchResponse(
        header=rpc_pb2.ResponseHeader(revision=8),
        fragment=True,
        events=[kv_pb2.Event(type=kv_pb2.Event.DELETE, kv=kv, prev_kv=prev)],
    )
    response = wire.watch_response(message, 4)
    assert (response.time, response.revision, response.fragment, response.is_progress) == (4, 8, True, False)
    assert response.events == (Event(False, KeyValue(b"a", b"", 0, 6, 0), KeyValue(b"a", b"x", 2, 3, 2)),)


@pytest.mark.parametrize("start", [1, 50])
def test_the_mix_asks_for_everything_and_never_writes_a_value_twice(start: int) -> None:
    """And for nothing older than the run, of which it would know nothing."""
    mix = Mix(Random(4), PREFIX, start)
    model = EtcdModel((*mix.keys, PREFIX + b"big1", PREFIX + b"big2"))
    state, kinds, values = model.empty(start), set(), []
    file = io.StringIO()
    recorder = Recorder(file, Setting(start))
    for moment in range(1, 3000):
        request = mix.next()
        kinds.add(type(request))
        state, answer = model.perform(state, request)
        refused = isinstance(answer, str)
        operation = Operation(
            1, 2 * moment, 2 * moment + 1, request, Outcome.FAILED if refused else Outcome.OK,
            None if isinstance(answer, str) else answer, answer if isinstance(answer, str) else "",
        )  # fmt: skip
        mix.learn(operation)
        recorder.operation(operation)
        if isinstance(request, Put):
            values.append(request.value)
        if isinstance(request, Range) and request.revision:
            assert request.revision >= mix.floor
        if isinstance(request, Compact):
            assert request.revision >= mix.floor
    assert len(kinds) == 7
    assert len(values) == len(set(values))
    assert recorder.counts["operations"] == 2999
    assert recorder.counts["failed"] > 0
    assert recorder.revision == state.revision
    assert len(recordfile.parse(file.getvalue().encode().splitlines()).operations) == 2999
