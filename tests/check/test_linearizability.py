"""Linearizability: what must be accepted, what must be rejected and with which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from chaos.check.history import (
    COMPACTED,
    FUTURE_REVISION,
    LEASE_NOT_FOUND,
    Answer,
    Chosen,
    Compact,
    Compare,
    Delete,
    Found,
    Grant,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Revoke,
    Target,
    Txn,
)
from chaos.check.linearizability import Budget, GlobalRevision, HistoryError, PerKey, Result, Verdict, check
from tests.check.build import DONE, deleted, get, kv, op, put, swap
from tests.check.simulated import history

BOTH = pytest.mark.parametrize("model", [GlobalRevision(), PerKey()], ids=["store", "keys"])
Model = GlobalRevision | PerKey
BUDGET = Budget(steps=100_000)


def judged(model: Model, *operations: Operation) -> Result:
    return check(model, operations, BUDGET)


def accepted(model: Model, *operations: Operation) -> None:
    result = judged(model, *operations)
    assert result.verdict is Verdict.OK, result.explanation


def rejected(model: Model, culprit: Operation, *others: Operation) -> str:
    """Illegal, because of ``culprit``; returns the explanation."""
    result = judged(model, *others, culprit)
    assert result.verdict is Verdict.ILLEGAL
    assert result.culprit is not None
    assert (result.culprit.client, result.culprit.call) == (culprit.client, culprit.call), result.explanation
    return result.explanation


@BOTH
def test_a_read_sees_the_write_before_it(model: Model) -> None:
    accepted(model, put(1, 2, "a", "x", 2), get(3, 4, "a", kv("a", "x", 2), 2))


@BOTH
def test_a_stale_read_is_illegal(model: Model) -> None:
    writes = put(1, 2, "a", "x", 2), put(3, 4, "a", "y", 3)
    text = rejected(model, get(5, 6, "a", kv("a", "x", 2), 2), *writes)
    assert "a = x" in text
    assert "a = y" in text or "is y" in text


@BOTH
def test_a_stale_read_without_revisions_is_illegal(model: Model) -> None:
    rejected(model, get(5, 6, "a", kv("a", "x", 2)), put(1, 2, "a", "x"), put(3, 4, "a", "y"))


@BOTH
def test_a_read_during_a_write_may_see_it_or_not(model: Model) -> None:
    accepted(model, put(1, 9, "a", "x", 2), get(2, 3, "a", None, 1), get(4, 5, "a", kv("a", "x", 2), 2))


@BOTH
def test_a_value_cannot_be_unseen(model: Model) -> None:
    """Two reads during one write: the later one may not go back."""
    late = get(4, 5, "a", None, 1)
    result = judged(model, put(1, 9, "a", "x", 2), get(2, 3, "a", kv("a", "x", 2), 2), late)
    assert result.verdict is Verdict.ILLEGAL


@BOTH
def test_a_lost_update_is_illegal(model: Model) -> None:
    """Two swaps from the same version cannot both succeed."""
    first, second = swap(3, 6, "a", 2, "y", True, 3), swap(4, 7, "a", 2, "z", True, 4)
    result = judged(model, put(1, 2, "a", "x", 2), first, second)
    assert result.verdict is Verdict.ILLEGAL
    assert result.culprit == second
    assert "mod_revision of a = 2" in result.explanation


@BOTH
def test_of_two_concurrent_swaps_one_wins(model: Model) -> None:
    accepted(model, put(1, 2, "a", "x", 2), swap(3, 6, "a", 2, "y", False, 3), swap(4, 7, "a", 2, "z", True, 3))


@BOTH
def test_an_acknowledged_write_that_is_gone_is_illegal(model: Model) -> None:
    rejected(model, get(3, 4, "a", None), put(1, 2, "a", "x"))


@BOTH
def test_a_phantom_is_illegal(model: Model) -> None:
    """A value that nobody has written, of a key that nobody has written."""
    text = rejected(model, get(3, 4, "a", kv("a", "ghost", 2)), put(1, 2, "a", "x"))
    assert "ghost" in text
    text = rejected(model, get(3, 4, "b", kv("b", "ghost", 2)))
    assert "ghost" in text


@BOTH
def test_an_unknown_write_may_be_seen_much_later(model: Model) -> None:
    accepted(
        model,
        put(1, None, "a", "x"),
        get(2, 3, "a", None, 1),
        put(4, 5, "b", "y", 2),
        get(6, 7, "a", None, 2),
        get(8, 9, "a", kv("a", "x", 3), 3),
    )


@BOTH
def test_an_unknown_write_may_never_be_seen(model: Model) -> None:
    accepted(model, put(1, None, "a", "x"), get(2, 3, "a", None, 1), put(4, 5, "a", "y", 2))


@BOTH
def test_an_unknown_write_that_was_overwritten_unseen_explains_a_version(model: Model) -> None:
    accepted(model, put(1, None, "a", "x"), put(4, 5, "a", "y", 3), get(6, 7, "a", kv("a", "y", 3, 2, 2), 3))


@BOTH
def test_an_unknown_write_cannot_be_applied_twice(model: Model) -> None:
    again = get(8, 9, "a", kv("a", "x", 4), 4)
    result = judged(
        model,
        put(1, None, "a", "x"),
        get(2, 3, "a", kv("a", "x", 2), 2),
        op(4, 5, Delete(b"a"), deleted(1), 3),
        again,
    )
    assert result.verdict is Verdict.ILLEGAL


@BOTH
def test_an_unknown_write_is_not_seen_before_its_call(model: Model) -> None:
    rejected(model, get(1, 2, "a", kv("a", "x", 2), 2), put(3, None, "a", "x"))


@BOTH
def test_a_refused_write_that_is_seen_is_illegal(model: Model) -> None:
    failed = op(1, 2, Put(b"a", b"x"), error="RESOURCE_EXHAUSTED: etcdserver: mvcc: database space exceeded")
    rejected(model, get(3, 4, "a", kv("a", "x", 2), 2), failed)


@BOTH
def test_revisions_do_not_go_back(model: Model) -> None:
    """Nothing but the header shows that the second read was answered from the past."""
    late = get(5, 6, "a", kv("a", "x", 2), 2)
    result = judged(
        model, put(1, 2, "a", "x", 2), put(1, 2, "b", "y", 3), get(3, 4, "a", kv("a", "x", 2), 3), late
    )
    assert result.verdict is Verdict.ILLEGAL
    assert "revision" in result.explanation


@BOTH
def test_a_deletion_counts_what_was_there(model: Model) -> None:
    accepted(model, put(1, 2, "a", "x", 2), op(3, 4, Delete(b"a"), deleted(1), 3), get(5, 6, "a", None, 3))
    rejected(model, op(3, 4, Delete(b"a"), deleted(0), 2), put(1, 2, "a", "x", 2))


@BOTH
def test_a_transaction_takes_the_branch_its_comparison_says(model: Model) -> None:
    rejected(model, swap(3, 4, "a", 2, "y", False, 2), put(1, 2, "a", "x", 2))


@BOTH
def test_a_serializable_read_may_be_stale(model: Model) -> None:
    stale = op(5, 6, Range(b"a", serializable=True), Found((kv("a", "x", 2),), 1), 2)
    accepted(model, put(1, 2, "a", "x", 2), put(3, 4, "a", "y", 3), stale)


@BOTH
def test_a_transaction_of_serializable_reads_or_of_nothing_may_be_stale(model: Model) -> None:
    stale, latest = Range(b"a", serializable=True), Range(b"a")
    found = Found((kv("a", "x", 2),), 1)
    writes = put(1, 2, "a", "x", 2), put(3, 4, "a", "y", 3)
    accepted(model, *writes, op(5, 6, Txn((), ()), Chosen(True), 2))
    accepted(model, *writes, op(5, 6, Txn((), (stale,)), Chosen(True, (found,)), 2))
    both = op(5, 6, Txn((), (stale, latest)), Chosen(True, (found, found)), 2)
    assert judged(model, *writes, both).verdict is Verdict.ILLEGAL


def test_one_revision_for_two_writes_is_illegal() -> None:
    result = judged(GlobalRevision(), put(1, 2, "a", "x", 2), put(3, 4, "b", "y", 2))
    assert result.verdict is Verdict.ILLEGAL
    assert "at revision 2; it should be: done at revision 3" in result.explanation


def test_a_skipped_revision_is_illegal() -> None:
    rejected(GlobalRevision(), put(3, 4, "b", "y", 4), put(1, 2, "a", "x", 2))


def test_a_transaction_is_atomic() -> None:
    """Only the model of the whole store sees that b was missing while a was there."""
    both = op(1, 2, Txn((), (Put(b"a", b"x"), Put(b"b", b"x"))), op_result(2), 2)
    torn = op(3, 4, Range(b"a", b"c"), Found((kv("a", "x", 2),), 1), 2)
    rejected(GlobalRevision(), torn, both)


def op_result(puts: int) -> Chosen:
    return Chosen(True, (DONE,) * puts)


def test_what_is_compacted_or_to_come_is_refused() -> None:
    written = put(1, 2, "a", "x", 2), put(3, 4, "a", "y", 3), op(5, 6, Compact(3), DONE, 3)
    old, far = Range(b"a", revision=2), Range(b"a", revision=9)
    accepted(GlobalRevision(), *written, op(7, 8, old, error=COMPACTED), op(7, 8, far, error=FUTURE_REVISION))
    rejected(GlobalRevision(), op(7, 8, Range(b"a", revision=3), error=COMPACTED), *written)
    rejected(GlobalRevision(), op(7, 8, old, Found((kv("a", "x", 2),), 1), 3), *written)


def test_leases_take_their_keys_with_them() -> None:
    granted, leased = op(1, 2, Grant(7, 60), DONE, 1), op(3, 4, Put(b"a", b"x", 7), DONE, 2)
    revoked = op(5, 6, Revoke(7), DONE, 3)
    accepted(GlobalRevision(), granted, leased, revoked, get(7, 8, "a", None, 3))
    rejected(GlobalRevision(), get(7, 8, "a", replace(kv("a", "x", 2), lease=7), 3), granted, leased, revoked)
    accepted(GlobalRevision(), op(1, 2, Put(b"a", b"x", 9), error=LEASE_NOT_FOUND))
    rejected(GlobalRevision(), op(3, 4, Put(b"a", b"x", 7), error=LEASE_NOT_FOUND), granted)


@BOTH
def test_the_header_of_a_revocation_may_be_newer_than_its_effect(model: Model) -> None:
    """It shows the revision when the answer was made; another write came between."""
    granted, leased = op(1, 2, Grant(7, 60), DONE, 1), op(3, 4, Put(b"a", b"x", 7), DONE, 2)
    accepted(model, granted, leased, op(5, 9, Revoke(7), DONE, 4), put(5, 8, "a", "y", 4))
    accepted(model, granted, leased, op(5, 9, Compact(2), DONE, 3), put(5, 8, "a", "y", 3))


@BOTH
def test_a_lost_write_of_a_value_that_others_wrote_too_is_no_twin(model: Model) -> None:
    lost = put(3, None, "a", "z"), put(4, None, "a", "y")
    accepted(model, put(1, 2, "a", "y", 2), *lost, get(5, 6, "a", kv("a", "y", 3, 2, 2), 3))


def test_the_header_of_a_compaction_is_not_older_than_its_effect() -> None:
    rejected(GlobalRevision(), op(3, 4, Compact(2), DONE, 1), put(1, 2, "a", "x", 2))


def test_values_are_compared_too() -> None:
    compare = Compare(b"a", Target.VALUE, Relation.GREATER, b"m")
    request = Txn((compare,), (Put(b"a", b"z"),))
    accepted(GlobalRevision(), put(1, 2, "a", "x", 2), op(3, 4, request, op_result(1), 3))
    rejected(GlobalRevision(), op(3, 4, request, op_result(1), 3), put(1, 2, "a", "c", 2))


def test_the_longest_legal_order_is_shown() -> None:
    result = judged(PerKey(), put(1, 2, "a", "x", 2), put(3, 4, "a", "y", 3), get(5, 6, "a", kv("a", "x", 2), 3))
    assert [operation.request for operation in result.prefix] == [Put(b"a", b"x"), Put(b"a", b"y")]
    assert result.part == "key a"


def test_a_spent_budget_is_no_pass() -> None:
    result = check(GlobalRevision(), history(1, 50), Budget(steps=10))
    assert result.verdict is Verdict.UNKNOWN


def test_a_client_that_does_not_wait_makes_no_history() -> None:
    first, second = put(1, 5, "a", "x"), put(3, 8, "a", "y")
    with pytest.raises(HistoryError, match="still waiting"):
        judged(PerKey(), replace(first, client=1), replace(second, client=1))
    with pytest.raises(HistoryError, match="unknown outcome before"):
        judged(PerKey(), replace(put(1, None, "a", "x"), client=1), replace(second, client=1))
    with pytest.raises(HistoryError, match="ends before"):
        judged(PerKey(), put(5, 4, "a", "x"))


@BOTH
@pytest.mark.parametrize("seed", range(40))
def test_what_a_correct_store_answers_is_accepted(model: Model, seed: int) -> None:
    operations = history(seed, 80, clients=3 + seed % 5)
    Random(seed).shuffle(operations)
    accepted(model, *operations)


@pytest.mark.parametrize("seed", range(40))
def test_one_impossible_answer_is_found(seed: int) -> None:
    operations = history(seed, 60, clients=4, lost=0.02)
    spoilt = _spoilt(operations, Random(seed))
    result = check(GlobalRevision(), spoilt, BUDGET)
    assert result.verdict is Verdict.ILLEGAL


@pytest.mark.parametrize("seed", range(20))
def test_one_impossible_value_is_found_by_its_key(seed: int) -> None:
    operations = history(seed, 60, clients=4, lost=0.02)
    assert check(PerKey(), _with_ghost(operations, Random(seed)), BUDGET).verdict is Verdict.ILLEGAL


def _spoilt(operations: Sequence[Operation], random: Random) -> list[Operation]:
    """One answer gets a revision that it cannot have, or a value that nobody wrote."""
    if random.random() < 0.5:
        return _with_ghost(operations, random)
    place = random.choice([i for i, each in enumerate(operations) if each.exact_revision])
    changed = operations[place]
    assert changed.answer is not None
    far = changed.answer.revision + random.choice((-30, 30))
    spoilt = replace(changed, answer=replace(changed.answer, revision=max(1, far)))
    if spoilt == changed or spoilt.answer is None or spoilt.answer.revision == 1:
        return _with_ghost(operations, random)
    return [*operations[:place], spoilt, *operations[place + 1 :]]


def _with_ghost(operations: Sequence[Operation], random: Random) -> list[Operation]:
    reads = [i for i, each in enumerate(operations) if each.answer and _seen(each.answer)]
    place = random.choice(reads)
    answer = operations[place].answer
    assert answer is not None
    assert isinstance(answer.result, Found)
    ghost = replace(answer.result.kvs[0], value=b"ghost")
    kvs = (ghost, *answer.result.kvs[1:])
    spoilt = replace(operations[place], answer=Answer(answer.revision, replace(answer.result, kvs=kvs)))
    return [*operations[:place], spoilt, *operations[place + 1 :]]


def _seen(answer: Answer) -> bool:
    return isinstance(answer.result, Found) and bool(answer.result.kvs)


def test_unknown_outcomes_by_the_dozen_are_decided() -> None:
    """Every fifth answer is lost: the search must not try all subsets."""
    for seed in range(5):
        operations = history(seed, 200, clients=6, lost=0.2)
        assert sum(each.outcome is Outcome.UNKNOWN for each in operations) > 25
        assert check(GlobalRevision(), operations, BUDGET).verdict is Verdict.OK
