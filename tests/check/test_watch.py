"""The watch guarantees: what a right stream looks like, and each way to break one, found under its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.check import history as h
from chaos.check.history import (
    Answer,
    Compact,
    Delete,
    Ending,
    Event,
    Found,
    Grant,
    History,
    KeyValue,
    Operation,
    Put,
    Range,
    Revoke,
    Setting,
    Txn,
    Watch,
)
from chaos.check.linearizability import Budget, Verdict
from chaos.check.verify import Report, verify
from chaos.check.watch import Guarantee
from tests.check.build import (
    DONE,
    batch,
    cancelled,
    created,
    deleted,
    deletion,
    event,
    get,
    kv,
    op,
    progress,
    put,
    watch,
)
from tests.check.simulated import whole_history
from tests.check.test_linearizability import op_result

X, Y, B, C = kv("a", "x", 2), kv("a", "y", 3, 2, 2), kv("b", "b", 4), kv("c", "c", 4)
Z = kv("a", "z", 6)

WRITES = (
    put(1, 2, "a", "x", 2),
    put(3, 4, "a", "y", 3),
    op(5, 6, Txn((), (Put(b"b", b"b"), Put(b"c", b"c"))), op_result(2), 4),
    op(7, 8, Delete(b"a"), deleted(1), 5),
    put(9, 10, "a", "z", 6),
)
COMPACTED = (*WRITES, op(11, 12, Compact(4), DONE, 6), put(13, 14, "d", "d", 7))

E2, E3, E4B, E4C = event(X), event(Y, X), event(B), event(C)
E5, E6 = deletion("a", 5, Y), event(Z)
ALL = (created(1), batch(E2), batch(E3), batch(E4B, E4C), batch(E5), batch(E6))


def bare(found: Event) -> Event:
    return replace(found, prev=None)


def judged(*watches: Watch, writes: Sequence[Operation] = WRITES, ending: Ending | None = None) -> Report:
    report = verify(History(Setting(), tuple(writes), watches, ending), Budget(steps=10_000))
    assert report.linearizability.verdict is Verdict.OK
    return report


def accepted(*watches: Watch, writes: Sequence[Operation] = WRITES) -> None:
    report = judged(*watches, writes=writes)
    assert [str(each) for each in report.watches] == []
    assert report.verdict is Verdict.OK


def rejected(broken: Watch, guarantee: Guarantee, *words: str, writes: Sequence[Operation] = WRITES) -> None:
    """Exactly this guarantee is violated, and the explanation has these words."""
    report = judged(broken, writes=writes)
    assert {each.guarantee for each in report.watches} == {guarantee}, list(report.lines())
    assert report.verdict is Verdict.ILLEGAL
    for word in words:
        assert word in report.watches[0].explanation


def impossible(*watches: Watch, writes: Sequence[Operation], agreed_to: int = 2) -> None:
    """Nothing is wrong with any one answer, but no order agrees with everything that was shown."""
    report = judged(*watches, writes=writes)
    assert (report.watches, report.reads) == ((), ())
    assert report.agreed_to == agreed_to
    assert report.verdict is Verdict.ILLEGAL
    assert any(f"beyond revision {agreed_to}" in line for line in report.lines())


def test_a_complete_stream_is_right() -> None:
    accepted(watch(ALL, prev_kv=True))
    accepted(watch((created(6), batch(E2, E3, E4B, E4C, E5, E6, revision=6)), start=1, prev_kv=True))


def test_a_watch_from_now_begins_behind_its_header() -> None:
    accepted(watch((created(3), batch(E4B, E4C), batch(bare(E5)))))
    rejected(watch((created(3), batch(bare(E5)))), Guarantee.RELIABLE, "put of b", "did not come")


def test_a_missing_event_is_found() -> None:
    rejected(watch((*ALL[:2], *ALL[3:]), prev_kv=True), Guarantee.RELIABLE, "a = y at revision 3 did not come")


def test_an_event_lost_before_a_bookmark_is_found() -> None:
    rejected(watch((created(1), batch(E2), progress(3))), Guarantee.RELIABLE, "a = y at revision 3 did not come")


def test_a_missing_first_event_breaks_the_resumption() -> None:
    stream = (created(6), batch(E4B, E4C, bare(E5), revision=6))
    rejected(watch(stream, start=3), Guarantee.RESUMABLE, "a = y at revision 3 did not come")


def test_half_a_revision_is_a_missing_event() -> None:
    rejected(watch((*ALL[:3], batch(E4B), *ALL[4:]), prev_kv=True), Guarantee.RELIABLE, "put of c")


def test_a_duplicate_is_found() -> None:
    rejected(watch((created(1), batch(E2), batch(bare(E3), bare(E3)))), Guarantee.UNIQUE, "came twice")


def test_an_event_of_nothing_is_found() -> None:
    ghost = event(kv("a", "ghost", 4))
    rejected(watch((created(3), batch(ghost, E4B, E4C))), Guarantee.RELIABLE, "ghost", "nothing like it happened")


def test_a_wrong_value_is_found() -> None:
    rejected(watch((created(1), batch(event(kv("a", "w", 2))))), Guarantee.RELIABLE, "w", "instead of a = x")


def test_going_back_in_time_is_found() -> None:
    stream = (created(1), batch(E2), batch(E4B, E4C), batch(bare(E3)), batch(bare(E5)))
    rejected(watch(stream), Guarantee.ORDERED, "a = y at revision 3 came after")


def test_a_split_revision_is_found() -> None:
    rejected(watch((created(3), batch(E4B), batch(E4C))), Guarantee.ATOMIC, "revision 4 was split")


def test_a_revision_in_fragments_is_whole() -> None:
    accepted(watch((created(3), batch(E4B, fragment=True), batch(E4C))))


def test_an_event_after_its_bookmark_is_found() -> None:
    stream = (created(1), batch(E2), progress(3), batch(bare(E3)))
    rejected(watch(stream), Guarantee.BOOKMARKABLE, "a = y at revision 3 came after a notification")


def test_a_bookmark_may_not_go_back() -> None:
    stream = (created(1), batch(E2, bare(E3)), progress(3), progress(3))
    accepted(watch(stream))
    rejected(watch((*stream, progress(2))), Guarantee.BOOKMARKABLE, "went back from 3 to 2")
    rejected(watch((created(1), batch(E2, bare(E3)), progress(2))), Guarantee.BOOKMARKABLE, "after an event")


def test_a_bookmark_of_a_revision_that_does_not_exist_is_found() -> None:
    rejected(
        watch((*ALL, progress(9)), prev_kv=True), Guarantee.STREAM, "told of revision 9, and the last one is 6"
    )


def test_a_wrong_previous_version_is_found() -> None:
    wrong = event(Y, kv("a", "w", 2))
    rejected(watch((created(1), batch(E2), batch(wrong)), prev_kv=True), Guarantee.PREV_KV, "a = w", "a = x")
    rejected(watch((created(1), batch(E2), batch(bare(E3))), prev_kv=True), Guarantee.PREV_KV, "no previous")
    rejected(watch((created(1), batch(event(X, X))), prev_kv=True), Guarantee.PREV_KV, "it was no previous")


def test_a_previous_version_may_be_missing_once_it_is_compacted() -> None:
    late = (created(7), batch(E4B, E4C, E5, E6, event(kv("d", "d", 7)), revision=7))
    accepted(watch(late, start=4, prev_kv=True), writes=COMPACTED)
    gone = (created(2), batch(bare(E3)))
    accepted(watch(gone, start=3, prev_kv=True), writes=COMPACTED)


def test_a_wrong_creation_is_found() -> None:
    rejected(
        watch((created(2), batch(event(kv("a", "y", 3, 2))))),
        Guarantee.IS_CREATE,
        "is marked as a creation",
        "was x",
    )
    again = event(kv("a", "z", 6, 3, 2))
    rejected(watch((created(5), batch(again))), Guarantee.IS_CREATE, "is not marked", "did not exist")


def test_an_event_out_of_the_filter_is_found() -> None:
    report = judged(watch((created(3), batch(E4B, E4C)), key="b", end=""))
    assert Guarantee.FILTER in {each.guarantee for each in report.watches}
    report = judged(watch((created(4), batch(bare(E5))), no_delete=True))
    assert Guarantee.FILTER in {each.guarantee for each in report.watches}
    report = judged(watch((created(2), batch(E3))))
    assert {each.guarantee for each in report.watches} == {Guarantee.FILTER}, "a previous version nobody asked for"


def test_filters_leave_the_rest() -> None:
    accepted(watch((created(1), batch(bare(E5)), progress(6)), no_put=True))
    accepted(watch((created(1), batch(E4B), progress(6)), key="b", end=""))


def test_a_start_in_what_is_compacted_is_cancelled() -> None:
    accepted(watch((created(7), cancelled(4)), start=2), writes=COMPACTED)


def test_a_start_in_what_is_compacted_may_not_begin_later() -> None:
    """The dangerous one: the stream looks whole, and begins after what was lost."""
    late = watch((created(7), batch(E4B, E4C, bare(E5), E6, event(kv("d", "d", 7)), revision=7)), start=2)
    report = judged(late, writes=COMPACTED)
    assert Guarantee.STALE_START in {each.guarantee for each in report.watches}
    text = next(each.explanation for each in report.watches if each.guarantee is Guarantee.STALE_START)
    assert "compacted (to 4)" in text


def test_a_member_that_has_not_compacted_yet_may_serve_the_past() -> None:
    """It shows a revision from before the compaction."""
    accepted(watch((created(6), batch(E2, bare(E3), revision=6)), start=2), writes=COMPACTED)


@pytest.mark.parametrize("end", [15, None])
def test_a_compaction_is_certain_only_after_the_revision_of_its_answer(end: int | None) -> None:
    """It overlaps the last write, so it may have been applied before or after; without an answer, at any time."""
    last = put(12, 14, "d", "d", 7)
    compaction = op(11, end, Compact(4), DONE, 7)
    reads = [op(16, 17, Range(b"a", revision=2, serializable=True), Found((X,), 1), 7)] if end else []
    past = watch((created(7), batch(E2, bare(E3), revision=7)), start=2)
    accepted(past, writes=(*WRITES, compaction, last, *reads))
    later = (*WRITES, compaction, last, put(18, 19, "e", "e", 8))
    past = watch((created(8), batch(E2, bare(E3), revision=8)), start=2)
    if end:
        rejected(past, Guarantee.STALE_START, "compacted (to 4)", writes=later)
    else:
        accepted(past, writes=later)


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_a_right_store_is_never_accused(first: int) -> None:
    """Whatever overlaps, lags behind or goes without an answer; the legal order found need not be the true one."""
    for seed in range(first, first + 60):
        report = verify(whole_history(seed), Budget(steps=200_000))
        assert report.verdict is Verdict.OK, (seed, list(report.lines()))


def test_a_cancellation_needs_a_reason() -> None:
    rejected(watch((created(6), cancelled(4)), start=2), Guarantee.CANCELED, "nobody asked for")
    stream = (created(7), batch(E4B, E4C, bare(E5), E6, revision=7), cancelled(4))
    rejected(watch(stream, start=4), Guarantee.CANCELED, "needs only 7 on", writes=COMPACTED)


def test_a_cancellation_needs_a_start_before_the_compacted_revision() -> None:
    """etcd still serves that one, and of course everything from now on."""
    last = put(15, 16, "e", "e", 8)
    gone = watch((created(7), cancelled(4)), start=4)
    rejected(gone, Guarantee.CANCELED, "needs only 4 on", writes=(*COMPACTED, last))
    rejected(watch((created(7), cancelled(4))), Guarantee.CANCELED, "needs only 8 on", writes=(*COMPACTED, last))


def test_a_run_may_end_with_a_watch_that_began_at_its_end() -> None:
    at_the_end = Ending(6, (1,))
    for whole in (watch((created(6),)), watch((created(6),), start=7)):
        assert judged(whole, ending=at_the_end).verdict is Verdict.OK
    assert judged(watch((created(5),)), ending=at_the_end).verdict is Verdict.ILLEGAL


def test_nothing_comes_after_a_cancellation() -> None:
    rejected(watch((created(1), batch(E2), cancelled(), batch(bare(E3)))), Guarantee.CANCELED, "and then got")


def test_a_start_in_the_future_waits() -> None:
    accepted(watch((created(2), batch(bare(E5), revision=5), batch(E6)), start=5))
    early = watch((created(2), batch(bare(E3)), batch(E4B, E4C), batch(bare(E5))), start=5)
    rejected(early, Guarantee.FUTURE_START, "starts at revision 5 and got the put of a = y")
    rejected(watch((created(2), progress(3)), start=6), Guarantee.FUTURE_START, "notified of progress to 3")


def test_the_past_before_its_start_is_not_asked_for() -> None:
    stream = (created(6), batch(E2, bare(E3), revision=6))
    rejected(watch(stream, start=3), Guarantee.RESUMABLE, "starts at revision 3 and got the put of a = x")


def test_created_comes_first_and_once() -> None:
    rejected(watch((batch(E2), created(1))), Guarantee.STREAM, "'created'")
    rejected(watch((created(1), created(1))), Guarantee.STREAM, "'created'")


def test_a_header_is_as_new_as_its_events() -> None:
    rejected(watch((created(1), batch(E2, bare(E3), revision=2))), Guarantee.STREAM, "newer than the header")


def test_watchers_that_disagree_are_found_without_an_oracle() -> None:
    """Somebody else writes too, so nothing but the watches themselves can be compared."""
    one = watch((created(1), batch(event(kv("a", "x", 2)))), number=1)
    other = watch((created(1), batch(event(kv("a", "w", 2)))), number=2)
    report = verify(History(Setting(exclusive=False), (), (one, other)), Budget())
    assert [(each.guarantee, each.number) for each in report.watches] == [(Guarantee.AGREEMENT, 2)]


def test_a_watch_that_stays_behind_at_the_end_is_found() -> None:
    stream = watch((created(1), batch(E2), batch(bare(E3))))
    report = judged(stream, ending=Ending(6, (1,)))
    assert [each.guarantee for each in report.watches] == [Guarantee.RELIABLE]
    assert "revision 3 only" in report.watches[0].explanation
    assert judged(stream, ending=Ending(6, ())).watches == ()


def test_a_lost_answer_is_found_in_the_watch() -> None:
    """The write of unknown outcome was delivered: it happened, at the revision of its event."""
    writes = (put(1, 2, "a", "x", 2), put(3, None, "a", "y"), put(5, 6, "a", "w", 4))
    fine = watch((created(1), batch(E2), batch(bare(E3)), batch(event(kv("a", "w", 4, 3, 2)))))
    accepted(fine, writes=writes)
    lost = watch((created(1), batch(E2), batch(event(kv("a", "w", 4, 3, 2)))))
    rejected(lost, Guarantee.RELIABLE, "a = y at revision 3", writes=writes)


def test_a_lost_deletion_is_told_from_others_by_its_event() -> None:
    """Two writes of unknown outcome could have made revision 3; the event says which one did."""
    b = kv("b", "b", 2)
    writes = (
        op(1, 2, Txn((), (Put(b"a", b"x"), Put(b"b", b"b"))), op_result(2), 2),
        op(3, None, Delete(b"a")),
        op(3, None, Delete(b"b")),
        put(5, 6, "c", "c", 4),
    )
    follower = watch((created(1), batch(E2, event(b)), batch(deletion("b", 3)), batch(event(C))))
    accepted(follower, writes=writes)
    accepted(follower, writes=(*writes, get(7, 8, "a", X, 4)))


def test_a_lost_answer_at_the_very_end_may_be_delivered() -> None:
    accepted(watch((created(1), batch(E2), batch(bare(E3)))), writes=(WRITES[0], put(3, None, "a", "y")))


@pytest.mark.parametrize(
    ("asked", "found", "words"),
    [
        (Range(b"a", revision=2), kv("a", "y", 3, 2, 2), "the store at revision 2 held: a = x"),
        (Range(b"a", revision=9), kv("a", "z", 6), "had to refuse revision 9"),
        (Range(b"a", revision=2, serializable=True), kv("a", "w", 2), "the store at revision 2 held: a = x"),
    ],
)
def test_reads_of_the_past_are_checked(asked: Range, found: KeyValue, words: str) -> None:
    read = op(11, 12, replace(asked, serializable=True), Found((found,), 1), 6)
    report = judged(writes=(*WRITES, read))
    assert [words in each.explanation for each in report.reads] == [True], report.reads


def test_a_stale_read_shows_one_revision_whole() -> None:
    def stale(shown: int, *kvs: KeyValue, client: int = 1, call: int = 11) -> Operation:
        found = Found(kvs, len(kvs))
        return op(call, call + 1, Range(b"a", b"z", serializable=True), found, shown, client, "m1")

    assert judged(writes=(*WRITES, stale(3, Y))).reads == ()
    assert len(judged(writes=(*WRITES, stale(3, Y, B))).reads) == 1
    assert len(judged(writes=(*WRITES, stale(4, Y, B))).reads) == 1
    assert len(judged(writes=(*WRITES, stale(9, Y, B, C))).reads) == 1
    back = judged(writes=(*WRITES, stale(4, Y, B, C), stale(3, Y, call=13)))
    assert "showed revision 4 to the same client before" in back.reads[0].explanation
    other = judged(writes=(*WRITES, stale(4, Y, B, C), stale(3, Y, call=13, client=2)))
    assert other.reads == ()


def test_going_back_among_negative_revisions_is_told() -> None:
    """No store has them; a file that was edited may, and is judged all the same."""
    found = Found((), 0)
    reads = [op(call, call + 1, Range(b"a", serializable=True), found, -call, 1, "m1") for call in (11, 13)]
    report = judged(writes=(*WRITES, *reads))
    assert any("showed revision -11 to the same client before" in read.explanation for read in report.reads)


def test_reading_what_is_compacted_is_found() -> None:
    read = op(15, 16, Range(b"a", revision=2, serializable=True), Found((X,), 1), 7)
    report = judged(writes=(*COMPACTED, read))
    assert "compacted (to 4), so it had to be refused" in report.reads[0].explanation


GRANTED = (op(1, 2, Grant(7, 60), DONE, 1), op(1, 2, Grant(8, 60), DONE, 1))
LEASED = (op(3, 4, Put(b"a", b"x", 7), DONE, 2), op(5, 6, Put(b"b", b"y", 8), DONE, 3))
REVOKED = (*GRANTED, *LEASED, op(7, 20, Revoke(7), DONE, 5), op(8, 20, Revoke(8), DONE, 5))
"""Two revocations that overlap, each told the last revision: which came first only others can say."""
BOTH = op(1, 2, Txn((), (Put(b"a", b"x"), Put(b"b", b"b"))), op_result(2), 2)
LOST = (put(1, 2, "a", "x", 2), put(3, None, "a", "y"), put(3, None, "b", "z"), put(5, 6, "c", "w", 4))
"""Either of the two lost writes may have made revision 3."""


@pytest.mark.parametrize("first", ["a", "b"])
def test_an_order_is_chosen_that_agrees_with_what_watches_showed(first: str) -> None:
    last = "ab".replace(first, "")
    accepted(watch((created(3), batch(deletion(first, 4)), batch(deletion(last, 5)))), writes=REVOKED)
    accepted(watch((created(3), batch(deletion(first, 4)))), writes=REVOKED)
    gone = (watch((created(3), batch(deletion("a", 4)))), watch((created(3), batch(deletion("b", 4))), number=2))
    assert judged(*gone, writes=REVOKED).verdict is Verdict.ILLEGAL, "and the watches with one another"


def test_an_order_is_chosen_that_agrees_with_what_old_reads_showed() -> None:
    for key, lease, mod in (("a", 7, 2), ("b", 8, 3)):
        value = "x" if key == "a" else "y"
        found = Found((replace(kv(key, value, mod), lease=lease),), 1)
        accepted(writes=(*REVOKED, op(21, 22, Range(b"a", b"z", revision=4), found, 5)))
    accepted(writes=(*LOST, op(7, 8, Range(b"a", revision=3), Found((X,), 1), 4)))


def test_what_a_watch_did_not_show_was_another_write() -> None:
    accepted(watch((created(1), batch(E2), progress(4)), key="a", end=""), writes=LOST)
    x, b, c = kv("a", "x", 2), kv("b", "b", 2), kv("c", "c", 4)
    shown = watch((created(1), batch(event(x), event(b)), batch(deletion("b", 3)), batch(event(c))))
    for other in (Txn((), (Put(b"a", b"v"), Delete(b"b"))), Delete(b"a", b"z")):
        lost = op(3, None, other), op(4, None, Delete(b"b"))
        accepted(shown, writes=(BOTH, *lost, put(5, 6, "c", "c", 4)))


def test_later_events_say_which_write_came_before() -> None:
    """By the previous version, or by counting."""
    two = (put(1, 2, "a", "x", 2), put(3, None, "a", "y1"), put(3, None, "a", "y2"), put(5, 6, "a", "z", 4))
    shown = event(kv("a", "z", 4, 3, 2), kv("a", "y2", 3, 2, 2))
    accepted(watch((created(3), batch(shown)), prev_kv=True), writes=two)
    other = (put(1, 2, "a", "x", 2), put(3, None, "a", "y"), put(3, None, "b", "z"), put(5, 6, "a", "w", 4))
    accepted(watch((created(3), batch(event(kv("a", "w", 4, 2, 2))))), writes=other)


def test_the_last_revision_may_be_that_of_a_lost_write() -> None:
    lost = (GRANTED[0], put(3, 4, "c", "c", 2), op(5, None, Put(b"b", b"b", 7)), op(6, 9, Revoke(7), DONE, 4))
    b = replace(kv("b", "b", 3), lease=7)
    accepted(watch((created(2), batch(event(b)), batch(deletion("b", 4)))), writes=lost)


def test_what_nobody_wrote_is_found_after_the_last_revision_too() -> None:
    wrote = (put(1, 2, "a", "x", 2), put(3, None, "b", "y"))
    for ghost in (event(kv("a", "ghost", 3, 2, 2)), deletion("a", 3)):
        impossible(watch((created(1), batch(E2), batch(ghost))), writes=wrote)
    stale = op(5, 6, Range(b"a", serializable=True), Found((kv("a", "ghost", 3, 2, 2),), 1), 3)
    impossible(writes=(*wrote, stale))


def test_a_revision_that_no_write_can_have_made_is_found() -> None:
    wrote = (put(1, 2, "a", "x", 2), put(3, None, "a", "y"))
    impossible(watch((created(1), batch(E2), batch(bare(E3)), progress(4))), writes=wrote, agreed_to=3)
    idle = (put(1, 2, "a", "x", 2), op(3, None, Grant(7, 60)), op(3, None, Compact(2)))
    impossible(watch((created(1), batch(E2), progress(4))), writes=idle)
    header = (put(1, 2, "a", "x", 2), op(3, 4, Grant(7, 60), DONE, 1000), put(5, 6, "a", "y", 3))
    assert verify(History(Setting(), header), Budget(steps=10_000)).verdict is Verdict.ILLEGAL


def test_what_no_order_agrees_with_is_illegal_however_long_the_search_for_a_legal_one() -> None:
    silent = watch((created(1), progress(6)))
    report = verify(History(Setting(), WRITES, (silent,)), Budget(steps=3))
    assert report.linearizability.verdict is Verdict.UNKNOWN
    assert (report.agreed_to, report.verdict) == (1, Verdict.ILLEGAL)


def test_revisions_that_no_store_has_are_judged_in_time() -> None:
    """Nobody asks for them; a file that was edited may hold them."""
    far = watch((created(1), batch(E2), progress(10**12)), start=-(10**12))
    assert judged(far).verdict is Verdict.ILLEGAL


def test_a_watch_from_now_gets_nothing_of_the_past() -> None:
    rejected(watch((created(2), batch(E2))), Guarantee.RELIABLE, "starts behind revision 2")


def test_two_watches_show_the_changes_of_a_revision_in_one_order() -> None:
    one = watch((created(3), batch(E4B, E4C)))
    other = watch((created(3), batch(E4C, E4B)), number=2)
    report = judged(one, other)
    assert [each.guarantee for each in report.watches] == [Guarantee.AGREEMENT]
    assert "got c before b of revision 4; watch 1 the other way round" in report.watches[0].explanation


def test_a_read_is_refused_as_compacted_only_if_somebody_compacted() -> None:
    old = op(15, 16, Range(b"a", revision=2, serializable=True), error=h.COMPACTED)
    assert judged(writes=(*COMPACTED, old)).verdict is Verdict.OK
    assert "nobody had asked" in judged(writes=(*WRITES, old)).reads[0].explanation
    early = op(1, 2, Range(b"a", revision=2, serializable=True), error=h.COMPACTED)
    assert judged(writes=(*COMPACTED, early)).verdict is Verdict.ILLEGAL


def test_a_member_does_not_forget_what_it_has_shown_a_client() -> None:
    def stale(call: int, revision: int, shown: int, error: str = "") -> Operation:
        asked = Range(b"a", revision=revision, serializable=True)
        return op(call, call + 1, asked, Found((Y,), 1), shown, 1, "m1", error)

    future = (stale(11, 0, 3), stale(13, 3, 0, h.FUTURE_REVISION))
    assert "showed revision 3" in judged(writes=(*WRITES, *future)).reads[0].explanation
    wrote = op(1, 2, Put(b"a", b"x"), DONE, 2, 1, "m1")
    read = op(3, 4, Range(b"a", serializable=True), Found(), 1, 1, "m1")
    assert "showed revision 2" in judged(writes=(wrote, read)).reads[0].explanation
    untold = (stale(11, 0, 3), replace(stale(13, 0, 3), answer=Answer(0, Found((Y,), 1))))
    assert judged(writes=(*WRITES, *untold)).reads == (), "a header that was not recorded says nothing"


def test_a_revision_is_not_shown_before_its_write_was_asked_for() -> None:
    early = op(1, 2, Range(b"a", serializable=True), Found((X,), 1), 2)
    report = judged(writes=(early, put(3, 4, "a", "x", 2)))
    assert "called only after this answer" in report.reads[0].explanation


def test_what_somebody_was_shown_is_shown_to_whoever_asks_later() -> None:
    """By a stale read or a header too, which are not in the order themselves."""
    ahead = op(3, 4, Range(b"a", serializable=True), Found((Y,), 1), 3)
    behind = get(5, 6, "a", X, 2)
    lost = put(1, 2, "a", "x", 2), op(2, 9, Put(b"a", b"y"), DONE, 3)
    report = judged(writes=(*lost, ahead, behind))
    assert [each.explanation for each in report.reads] == [
        "somebody had been shown revision 3 before it was called"
    ]
    local = replace(behind, request=Range(b"a", serializable=True))
    assert judged(writes=(*lost, ahead, local)).reads == ()


def test_without_a_legal_order_streams_are_still_checked() -> None:
    stale = get(11, 12, "a", Y, 3)
    twice = watch((created(1), batch(E2), batch(E2)))
    report = verify(History(Setting(), (*WRITES, stale), (twice,)), Budget(steps=10_000))
    assert report.linearizability.verdict is Verdict.ILLEGAL
    assert {each.guarantee for each in report.watches} == {Guarantee.UNIQUE, Guarantee.ATOMIC}


def test_every_guarantee_has_a_test() -> None:
    """What no test names could be dropped unseen."""
    text = Path(__file__).read_text()
    assert [kind.name for kind in Guarantee if f"Guarantee.{kind.name}" not in text] == []
