"""The verdict on what clients saw, once a run is over: linearizable, and every answer and event true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from chaos.check import history as h
from chaos.check.linearizability import GlobalRevision, Verdict, check
from chaos.check.search import Budget
from chaos.check.watch import Oracle, check_watches
from chaos.sim.truth import Truth

STEPS_MAX: Final = 200_000
FOREVER_S: Final = 600
"""A lease of so many seconds outlives every run."""

State = Mapping[bytes, h.KeyValue]


class Undecided(AssertionError):
    """The history is too concurrent for the budget."""


def judge(operations: Sequence[h.Operation], watches: Sequence[h.Watch], truth: Truth) -> None:
    """Raises AssertionError, beginning with the name of what was violated."""
    states = truth.states()
    for operation in operations:
        _check_content(operation, states)
    for watch in watches:
        _check_watch(watch, truth, states)
    _check_order(operations, truth)
    broken = check_watches(watches, Oracle(compactions=sorted(truth.compactions)))
    assert not broken, f"watch: {broken[0]}"


def _check_order(operations: Sequence[h.Operation], truth: Truth) -> None:
    certain = [each for each in operations if each.outcome is not h.Outcome.UNKNOWN]
    unknown = [
        each
        for each in operations
        if each.outcome is h.Outcome.UNKNOWN and each.writes and truth.was_carried_out(each.request)
    ]
    # What happened at each revision is known, so most writes whose answers were lost have their place.
    result = check(GlobalRevision(), [*certain, *unknown], Budget(steps=STEPS_MAX), [truth.as_watch()])
    if result.verdict is Verdict.UNKNOWN:
        raise Undecided(f"linearizability: undecided after {result.steps} steps")
    assert result.verdict is Verdict.OK, f"linearizability: {result.explanation}"


def with_expiries(operations: Sequence[h.Operation], ends: Mapping[int, int], truth: Truth) -> list[h.Operation]:
    """The operations, and for every lease that ran out a revoke by nobody: at any time from its end on.

    ``ends`` is the earliest time at which each lease could end.
    """
    out = list(operations)
    client = max((each.client for each in operations), default=0)
    for lease in sorted(truth.revoked & ends.keys()):
        client += 1
        out.append(h.Operation(client, ends[lease], None, h.Revoke(lease), h.Outcome.UNKNOWN))
    return out


def _check_content(operation: h.Operation, states: Mapping[int, State]) -> None:
    """What a read returned is what the store held at the revision it names, for stale and old reads too (§2)."""
    request, answer = operation.request, operation.answer
    if answer is None or not isinstance(request, h.Range):
        return
    assert isinstance(answer.result, h.Found)
    revision = request.revision or answer.revision
    state = states.get(revision)
    assert state is not None, f"reads: {operation.endpoint} answered at revision {revision}, which never existed"
    held = tuple(state[key] for key in sorted(state) if h.in_range(key, request.key, request.end))
    expected = held[: request.limit] if request.limit else held
    assert answer.result.kvs == expected, (
        f"reads: at revision {revision} {request} returned {answer.result.kvs}, the store held {expected}"
    )
    assert answer.result.count == len(held), f"reads: {request} counted {answer.result.count} of {len(held)}"


def _check_watch(watch: h.Watch, truth: Truth, states: Mapping[int, State]) -> None:
    """Everything in order, once, whole and true, from the start to the last thing heard (§3)."""
    request = watch.request
    where = f"watch {request.number} at {request.endpoint}"
    expected_next = request.start_revision
    promised = 0
    for response in watch.responses:
        if response.created and not request.start_revision:
            expected_next = response.revision + 1
        for event in response.events:
            assert event.revision > promised, f"bookmarkable: {where}: {event.revision} after progress {promised}"
        if response.events:
            first, last = response.events[0].revision, response.events[-1].revision
            wanted = [e for r in range(expected_next, last + 1) for e in _wanted(request, truth, r)]
            shown = [replace(each, prev=None) for each in response.events]
            assert shown == [replace(each, prev=None) for each in wanted], (
                f"reliable: {where}: from {expected_next} to {last} it delivered {[e.revision for e in shown]}, "
                f"the store has {[e.revision for e in wanted]} (first {first})"
            )
            for got, true in zip(response.events, wanted, strict=True):
                assert got.prev is None or got.prev == true.prev, f"prevkv: {where}: {got.prev} for {true.prev}"
            expected_next = last + 1
        elif response.is_progress:
            missed = [
                e.revision for r in range(expected_next, response.revision + 1) for e in _wanted(request, truth, r)
            ]
            assert not missed, f"bookmarkable: {where}: progress {response.revision} before events {missed}"
            assert response.revision >= promised, f"bookmarkable: {where}: progress went back from {promised}"
            promised = response.revision
            expected_next = max(expected_next, promised + 1)
        elif response.canceled:
            assert response.compact_revision > 0, f"canceled: {where}: {response.reason}"
            assert expected_next < response.compact_revision, (
                f"stale start: {where}: {response} at {expected_next}"
            )


def _wanted(request: h.WatchRequest, truth: Truth, revision: int) -> list[h.Event]:
    return [
        event
        for event in truth.events.get(revision, ())
        if h.in_range(event.kv.key, request.key, request.end)
        and not (request.no_delete and not event.is_put)
        and not (request.no_put and event.is_put)
    ]


__all__ = ["Undecided", "judge", "with_expiries"]
