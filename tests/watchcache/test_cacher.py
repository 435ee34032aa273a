"""The watch cache over a model store (cases D; contract §1 and §2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.watchcache.fake import FakeBackend
from tests.watchcache.pods import PREFIX, assert_silent, encoded, pod_resource, select, summary, take
from watchcache.backend import BackendError, Compacted, Unavailable
from watchcache.cacher import Cacher
from watchcache.codec import Codec
from watchcache.errors import CorruptObject, Expired, NotFound, NotReady, TooLargeResourceVersion
from watchcache.options import EXACT, NOT_OLDER_THAN, ContinueToken, ListOptions, WatchOptions
from watchcache.recovery import StoreRecovery
from watchcache.ring import EventRing


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(
    backend: FakeBackend, clock: Clock | None = None, *, wait: bool = True, ring: EventRing | None = None
) -> AsyncIterator[Cacher]:
    recovery = StoreRecovery(backend)
    cacher = Cacher(backend, Codec(pod_resource()), recovery, clock=clock or Clock(), ring=ring)
    tasks = [asyncio.create_task(cacher.run()), asyncio.create_task(recovery.run())]
    try:
        if wait:
            async with asyncio.timeout(5):
                await cacher.wait_ready()
        yield cacher
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def put(backend: FakeBackend, name: str, namespace: str = "ns", **kwargs: object) -> int:
    return backend.put(f"{PREFIX}{namespace}/{name}", encoded(namespace, name, **kwargs))


async def reached(cacher: Cacher, version: int) -> None:
    """Until the cache holds ``version``."""
    async with asyncio.timeout(5):
        await cacher.list(ListOptions(resource_version=str(version), match=NOT_OLDER_THAN))


def names(items: object) -> list[str]:
    return [item.name for item in items]  # type: ignore[attr-defined]


# --- lists -----------------------------------------------------------------------------------------------------


async def test_a_consistent_list_waits_for_the_revision_and_reads_no_object_from_the_store() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        put(backend, "a")
        backend.put("/registry/other/x", b"{}")  # moves the revision, not this type
        backend.ranges.clear()
        result = await cacher.list(ListOptions())
        assert names(result.items) == ["a"]
        assert result.resource_version == backend.revision
        assert backend.ranges == []  # case 38: only the revision probe
        assert backend.progress_requests >= 1


async def test_a_consistent_list_falls_back_to_the_store_when_the_cache_does_not_catch_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    backend = FakeBackend()
    async with running(backend) as cacher:
        backend.withhold_progress = True
        backend.watches[0].held = True
        put(backend, "late")
        assert names((await cacher.list(ListOptions())).items) == ["late"]
        assert cacher.statistics().consistent_read_fallbacks == 1
        assert names((await cacher.list(ListOptions(resource_version="0"))).items) == []


async def test_an_old_etcd_answers_consistent_lists_itself() -> None:
    backend = FakeBackend(version="3.5.1")
    async with running(backend) as cacher:
        put(backend, "a")
        assert names((await cacher.list(ListOptions())).items) == ["a"]
        assert backend.progress_requests == 0


async def test_case_39_version_zero_ignores_the_limit() -> None:
    backend = FakeBackend()
    put(backend, "a")
    put(backend, "b")
    async with running(backend) as cacher:
        result = await cacher.list(ListOptions(resource_version="0", limit=1))
        assert (names(result.items), result.continue_token) == (["a", "b"], "")


async def test_case_87_version_zero_is_answered_without_the_store() -> None:
    backend = FakeBackend()
    put(backend, "a")
    async with running(backend) as cacher:
        backend.fail = Unavailable("etcdserver: request timed out")
        assert (await cacher.get("ns/a", "0")).name == "a"
        assert names((await cacher.list(ListOptions(resource_version="0"))).items) == ["a"]
        with pytest.raises(Unavailable):
            await cacher.get("ns/a")
        with pytest.raises(Unavailable):
            await cacher.list(ListOptions())


async def test_not_older_than_a_future_revision_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    backend = FakeBackend()
    async with running(backend) as cacher:
        with pytest.raises(TooLargeResourceVersion) as caught:
            await cacher.list(ListOptions(resource_version="1000", match=NOT_OLDER_THAN))
        assert caught.value.retry_after_s == 1
        with pytest.raises(TooLargeResourceVersion):
            await cacher.get("ns/a", "1000")


async def test_case_85_exact_lists_show_the_state_of_that_revision() -> None:
    backend = FakeBackend()
    first = put(backend, "a")
    async with running(backend) as cacher:
        second = put(backend, "b")
        await reached(cacher, second)
        result = await cacher.list(ListOptions(resource_version=str(first), match=EXACT))
        assert (names(result.items), result.resource_version) == (["a"], first)
        legacy = await cacher.list(ListOptions(resource_version=str(first), limit=10))
        assert (names(legacy.items), legacy.resource_version) == (["a"], first)


async def test_an_exact_list_below_the_compaction_is_expired() -> None:
    backend = FakeBackend()
    first = put(backend, "a")
    async with running(backend) as cacher:
        await backend.compact(put(backend, "b"))
        with pytest.raises(Expired, match="The resourceVersion for the provided list is too old"):
            await cacher.list(ListOptions(resource_version=str(first), match=EXACT))


async def test_pages_from_the_cache_continue_at_the_first_pages_revision() -> None:
    backend = FakeBackend()
    for name in "abc":
        put(backend, name)
    async with running(backend) as cacher:
        page = await cacher.list(ListOptions(limit=2))
        assert (names(page.items), page.remaining) == (["a", "b"], 1)
        token = ContinueToken.decode(page.continue_token)
        assert token == ContinueToken(page.resource_version, "ns/b\0")
        put(backend, "d")
        rest = await cacher.list(ListOptions(limit=2, continue_token=page.continue_token))
        assert (names(rest.items), rest.continue_token) == (["c"], "")
        assert rest.resource_version == page.resource_version


async def test_an_inconsistent_continue_reads_the_present_from_the_token_key() -> None:
    backend = FakeBackend()
    for name in "abc":
        put(backend, name)
    async with running(backend) as cacher:
        token = ContinueToken(-1, "ns/a\0").encode()
        page = await cacher.list(ListOptions(limit=1, continue_token=token))
        assert names(page.items) == ["b"]
        assert ContinueToken.decode(page.continue_token).resource_version == page.resource_version


async def test_a_list_of_one_name_reads_one_key() -> None:
    backend = FakeBackend()
    put(backend, "a")
    async with running(backend) as cacher:
        for version in ("", "0"):
            options = ListOptions("ns", select(fields="metadata.name=a"), version)
            assert names((await cacher.list(options)).items) == ["a"]
        absent = ListOptions("ns", select(fields="metadata.name=a", labels="x"), "0")
        assert (await cacher.list(absent)).items == []


# --- watches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "0"])
async def test_case_79_a_plain_watch_starts_with_the_state_in_key_order(version: str) -> None:
    backend = FakeBackend()
    for name in "cab":
        put(backend, name)
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions(resource_version=version))
        events = await take(watcher, 3)
        assert summary(events) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
        put(backend, "d")
        assert summary(await take(watcher, 1)) == [("ADDED", "d")]


@pytest.mark.parametrize("version", ["", "0", "2", "current"])
@pytest.mark.parametrize("bookmarks", [True, False])
async def test_case_79_a_watch_list_ends_its_state_with_the_annotated_bookmark(
    version: str, bookmarks: bool
) -> None:
    backend = FakeBackend()
    for name in "abc":
        put(backend, name)
    async with running(backend) as cacher:
        asked = str(backend.revision) if version == "current" else version
        options = WatchOptions(
            resource_version=asked, match=NOT_OLDER_THAN, send_initial_events=True, allow_bookmarks=bookmarks
        )
        watcher = await cacher.watch(options)
        kinds = [event.kind for event in await take(watcher, 3)]
        assert kinds == ["ADDED"] * 3
        if bookmarks:
            (mark,) = await take(watcher, 1)
            assert (mark.kind, mark.initial_events_end) == ("BOOKMARK", True)
            assert mark.resource_version >= backend.revision
        put(backend, "d")
        assert summary(await take(watcher, 1)) == [("ADDED", "d")]


@pytest.mark.parametrize("version", ["", "0", "current"])
async def test_case_79_without_initial_events_only_news_is_sent(version: str) -> None:
    backend = FakeBackend()
    put(backend, "a")
    async with running(backend) as cacher:
        asked = str(backend.revision) if version == "current" else version
        watcher = await cacher.watch(
            WatchOptions(resource_version=asked, match=NOT_OLDER_THAN, send_initial_events=False)
        )
        await assert_silent(watcher)
        put(backend, "b")
        assert summary(await take(watcher, 1)) == [("ADDED", "b")]


async def test_a_watch_from_a_revision_sends_the_history_after_it() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        first = put(backend, "a")
        put(backend, "a", node="n1")
        backend.remove(f"{PREFIX}ns/a")
        await reached(cacher, backend.revision)
        watcher = await cacher.watch(WatchOptions(resource_version=str(first)))
        events = await take(watcher, 2)
        assert summary(events) == [("MODIFIED", "a"), ("DELETED", "a")]
        deleted = events[1].object
        assert deleted is not None
        assert deleted.resource_version == backend.revision
        assert b'"nodeName":"n1"' in deleted.raw
        assert b'"resourceVersion":"%d"' % backend.revision in deleted.raw


async def test_case_89_a_watch_from_before_the_window_is_expired() -> None:
    backend = FakeBackend()
    put(backend, "a")
    async with running(backend) as cacher:
        listed = backend.revision
        with pytest.raises(Expired, match=rf"too old resource version: {listed - 1} \({listed}\)"):
            await cacher.watch(WatchOptions(resource_version=str(listed - 1)))
        for version in (listed, listed + 1):
            await assert_silent(await cacher.watch(WatchOptions(resource_version=str(version))))


async def test_case_102_a_watch_from_the_future_sees_only_what_is_newer() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        future = backend.revision + 3
        watcher = await cacher.watch(WatchOptions(resource_version=str(future)))
        for name in "abcd":
            put(backend, name)
        (event,) = await take(watcher, 1)
        assert event.resource_version == future + 1


async def test_case_65_leaving_and_entering_the_selection_is_deleted_and_added() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions(predicate=select(labels="app=x")))
        put(backend, "a", labels={"app": "x"})
        put(backend, "a")
        put(backend, "a", labels={"app": "x"})
        put(backend, "a", labels={"app": "x", "v": "2"})
        last = backend.remove(f"{PREFIX}ns/a")
        await reached(cacher, last)
        kinds = [event.kind for event in await take(watcher, 5)]
        assert kinds == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]


async def test_case_111_watchers_by_node_get_only_the_pods_of_their_node() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        on_a = await cacher.watch(WatchOptions(predicate=select(fields="spec.nodeName=a")))
        on_b = await cacher.watch(WatchOptions(predicate=select(fields="spec.nodeName=b")))
        on_c = await cacher.watch(WatchOptions(predicate=select(fields="spec.nodeName=c")))
        elsewhere = await cacher.watch(WatchOptions(namespace="other"))
        by_name = await cacher.watch(WatchOptions("ns", select(fields="metadata.name=p")))
        put(backend, "p", node="a")
        put(backend, "p", node="b")
        await reached(cacher, backend.revision)
        assert summary(await take(on_a, 2)) == [("ADDED", "p"), ("DELETED", "p")]
        assert summary(await take(on_b, 1)) == [("ADDED", "p")]
        assert summary(await take(by_name, 2)) == [("ADDED", "p"), ("MODIFIED", "p")]
        await assert_silent(on_c)
        await assert_silent(elsewhere)


async def test_every_watcher_and_list_shares_the_same_bytes() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watchers = [await cacher.watch(WatchOptions()) for _ in range(3)]
        await reached(cacher, put(backend, "a"))
        (listed,) = (await cacher.list(ListOptions(resource_version="0"))).items
        for watcher in watchers:
            (event,) = await take(watcher, 1)
            assert event.object is not None
            assert event.object.raw is listed.raw


async def test_a_revision_with_several_writes_becomes_visible_as_a_whole() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions())
        version = backend.put_many({f"{PREFIX}ns/{name}": encoded("ns", name) for name in "ab"})
        events = await take(watcher, 2)
        assert [event.resource_version for event in events] == [version, version]
        after_first = await cacher.watch(WatchOptions(resource_version=str(version - 1)))
        assert len(await take(after_first, 2)) == 2


async def test_case_86_who_answers_which_list() -> None:
    """Every combination of version, match, limit and token: by the cache alone, or by a read of objects."""
    backend = FakeBackend()
    for name in "abc":
        put(backend, name)
    async with running(backend) as cacher:
        now = str(backend.revision)
        token = ContinueToken(backend.revision, "ns/a\0").encode()
        inconsistent = ContinueToken(-1, "ns/a\0").encode()
        by_cache = [
            ListOptions(),
            ListOptions(limit=1),
            ListOptions(continue_token=inconsistent),
            ListOptions(resource_version="0"),
            ListOptions(resource_version="0", limit=1),
            ListOptions(resource_version="0", match=NOT_OLDER_THAN, limit=1),
            ListOptions(resource_version=now),
            ListOptions(resource_version=now, match=NOT_OLDER_THAN),
            ListOptions(resource_version=now, match=NOT_OLDER_THAN, limit=1),
        ]
        by_store = [
            ListOptions(resource_version=now, limit=1),
            ListOptions(resource_version=now, match=EXACT),
            ListOptions(resource_version=now, match=EXACT, limit=1),
            ListOptions(continue_token=token),
            ListOptions(continue_token=token, limit=1),
            ListOptions(resource_version="0", continue_token=token),
        ]
        for expected, cases in ((False, by_cache), (True, by_store)):
            for options in cases:
                backend.ranges.clear()
                await cacher.list(options)
                assert bool(backend.ranges) is expected, options


async def test_case_78_bookmarks_never_go_back_and_events_go_forward() -> None:
    backend, clock = FakeBackend(), Clock()
    async with running(backend, clock) as cacher:
        watcher = await cacher.watch(WatchOptions(allow_bookmarks=True))
        last, marks, seen = 0, 0, 0
        for number in range(100):
            put(backend, f"p{number}")
            clock.now += 10
            cacher.send_bookmarks()
            for event in await asyncio.wait_for(watcher.next_batch(), 5):
                if event.kind == "BOOKMARK":
                    marks += not event.initial_events_end
                    assert event.resource_version >= last
                else:
                    seen += 1
                    assert event.resource_version > last
                last = event.resource_version
        assert marks >= 1
        assert seen >= 90


# --- bookmarks -------------------------------------------------------------------------------------------------


async def test_case_103_bookmarks_follow_progress_once_a_minute() -> None:
    backend, clock = FakeBackend(), Clock()
    async with running(backend, clock) as cacher:
        watcher = await cacher.watch(
            WatchOptions(
                resource_version="0", match=NOT_OLDER_THAN, send_initial_events=False, allow_bookmarks=True
            )
        )
        for _ in range(5):
            backend.put("/registry/other/x", b"{}")
        await cacher.list(ListOptions())  # brings the cache up to date by a progress notification
        cacher.send_bookmarks()
        await assert_silent(watcher)
        clock.now += 61
        cacher.send_bookmarks()
        cacher.send_bookmarks()
        (mark,) = await take(watcher, 1)
        assert (mark.kind, mark.resource_version, mark.initial_events_end) == ("BOOKMARK", backend.revision, False)
        clock.now += 61
        cacher.send_bookmarks()
        assert (await take(watcher, 1))[0].resource_version == backend.revision


async def test_a_watch_without_progress_since_its_start_gets_no_bookmark() -> None:
    backend, clock = FakeBackend(), Clock()
    put(backend, "a")
    async with running(backend, clock) as cacher:
        watcher = await cacher.watch(WatchOptions(resource_version=str(backend.revision), allow_bookmarks=True))
        clock.now += 61
        cacher.send_bookmarks()
        await assert_silent(watcher)


async def test_case_77_one_bookmark_comes_shortly_before_the_deadline() -> None:
    backend, clock = FakeBackend(), Clock()
    async with running(backend, clock) as cacher:
        start = str(backend.revision)
        watcher = await cacher.watch(WatchOptions(resource_version=start, allow_bookmarks=True, timeout_s=10.0))
        without = await cacher.watch(WatchOptions(resource_version=start, timeout_s=10.0))
        await reached(cacher, put(backend, "a"))
        await take(watcher, 1)
        await take(without, 1)
        clock.now += 7
        cacher.send_bookmarks()
        await assert_silent(watcher)
        clock.now += 1.5
        cacher.send_bookmarks()
        cacher.send_bookmarks()
        assert [event.kind for event in await take(watcher, 1)] == ["BOOKMARK"]
        await assert_silent(without)


async def test_case_106_a_watch_list_completes_by_progress_alone() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        backend.put("/registry/other/x", b"{}")
        watcher = await cacher.watch(
            WatchOptions(match=NOT_OLDER_THAN, send_initial_events=True, allow_bookmarks=True)
        )
        (mark,) = await take(watcher, 1)
        assert (mark.initial_events_end, mark.resource_version) == (True, backend.revision)


# --- slow watchers ---------------------------------------------------------------------------------------------


async def test_a_watcher_that_does_not_read_is_closed_without_an_error_and_without_a_gap() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        slow = await cacher.watch(WatchOptions())
        quick = await cacher.watch(WatchOptions())
        seen: list[str] = []

        async def read() -> None:
            while len(seen) < 100:
                seen.extend(name for _, name in summary(await quick.next_batch()))

        reader = asyncio.create_task(read())
        for number in range(100):
            put(backend, f"p{number:03}")
        await asyncio.wait_for(reader, 5)
        assert seen == [f"p{number:03}" for number in range(100)]
        kept: list[str] = []
        while batch := await slow.next_batch():
            assert all(event.kind == "ADDED" for event in batch)
            kept += [name for _, name in summary(batch)]
        assert 10 <= len(kept) < 100  # case 69
        assert kept == seen[: len(kept)]
        assert cacher.statistics().slow_watchers_terminated == 1
        assert cacher.statistics().watchers == 1


# --- readiness and recovery ------------------------------------------------------------------------------------


async def test_case_109_a_cache_that_cannot_initialise_refuses_at_once() -> None:
    backend, clock = FakeBackend(), Clock()
    backend.fail = Unavailable("etcdserver: no leader")
    async with running(backend, clock, wait=False) as cacher:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += 20
        with pytest.raises(NotReady, match=r"storage is \(re\)initializing: etcdserver: no leader") as caught:
            await cacher.watch(WatchOptions(resource_version="0"))
        assert caught.value.retry_after_s == 3
        with pytest.raises(NotReady):
            await cacher.list(ListOptions(resource_version="0"))


async def test_case_109_a_stopped_cache_refuses_watches_and_leaves_reads_to_the_store() -> None:
    backend = FakeBackend()
    put(backend, "a")
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions(resource_version=str(backend.revision)))
    assert await watcher.next_batch() == []
    with pytest.raises(NotReady):
        await cacher.watch(WatchOptions(resource_version="0"))
    assert (await cacher.get("ns/a", "0")).name == "a"
    assert names((await cacher.list(ListOptions(limit=5))).items) == ["a"]
    with pytest.raises(NotFound):
        await cacher.get("ns/b")


async def test_an_interrupted_store_watch_is_resumed_without_loss_or_repetition() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions())
        put(backend, "a")
        assert summary(await take(watcher, 1)) == [("ADDED", "a")]
        backend.fail = Unavailable("etcdserver: no leader")
        backend.interrupt()
        await asyncio.sleep(0.05)
        put(backend, "b")
        assert names((await cacher.list(ListOptions(resource_version="0"))).items) == ["a"]
        put(backend, "a", node="n")
        backend.fail = None
        assert summary(await take(watcher, 2)) == [("ADDED", "b"), ("MODIFIED", "a")]
        await assert_silent(watcher)
        assert cacher.statistics().initializations == 1


async def test_the_cache_returns_promptly_when_the_store_is_back() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions())
        backend.fail = Unavailable("connection refused")
        backend.interrupt()
        await asyncio.sleep(1.0)  # the back-off of a single cache is past its first steps by now
        backend.fail = None
        started = asyncio.get_running_loop().time()
        put(backend, "a")
        await take(watcher, 1)
        assert asyncio.get_running_loop().time() - started < 1.0


async def test_case_101_lost_history_closes_watches_and_starts_over() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions())
        before = put(backend, "a")
        await take(watcher, 1)
        backend.watches[0].held = True
        await backend.compact(put(backend, "b"))
        backend.interrupt(Compacted("etcdserver: mvcc: required revision has been compacted", backend.compacted))
        assert await asyncio.wait_for(watcher.next_batch(), 5) == []
        await reached(cacher, backend.revision)
        assert cacher.statistics().initializations == 2
        with pytest.raises(Expired):
            await cacher.watch(WatchOptions(resource_version=str(before)))
        assert names((await cacher.list(ListOptions(resource_version="0"))).items) == ["a", "b"]


async def test_a_store_that_went_back_in_revision_is_listed_anew() -> None:
    backend = FakeBackend()
    kept = put(backend, "a")
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions(resource_version=str(kept)))
        put(backend, "b")
        await take(watcher, 1)
        backend.rewind(kept)
        backend.interrupt()
        assert await asyncio.wait_for(watcher.next_batch(), 5) == []
        await asyncio.wait_for(cacher.wait_ready(), 5)
        result = await cacher.list(ListOptions(resource_version="0"))
        assert (names(result.items), result.resource_version) == (["a"], kept)


async def test_a_store_that_went_back_is_noticed_by_a_cache_that_had_seen_little_of_it() -> None:
    """The new history has passed the revision of that cache before it looks: what another cache saw decides."""
    backend = FakeBackend()
    quiet_prefix = "/registry/quiet/"
    backend.put(f"{quiet_prefix}ns/x", encoded("ns", "x"))
    recovery = StoreRecovery(backend)
    quiet = Cacher(backend, Codec(pod_resource(quiet_prefix)), recovery, clock=Clock())
    busy = Cacher(backend, Codec(pod_resource()), recovery, clock=Clock())
    tasks = [asyncio.create_task(each.run()) for each in (quiet, busy, recovery)]
    try:
        async with asyncio.timeout(5):
            await quiet.wait_ready()
            await busy.wait_ready()
            for number in range(5):
                put(backend, f"p{number}")
            await reached(busy, backend.revision)
            backend.rewind(0)
            for number in range(3):
                put(backend, f"new{number}")
            backend.interrupt()
            await reached(quiet, backend.revision)
        assert quiet.statistics().initializations == 2
        assert (await quiet.list(ListOptions(resource_version="0"))).items == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_another_failure_of_the_store_watch_starts_over() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watcher = await cacher.watch(WatchOptions())
        backend.interrupt(BackendError("etcdserver: permission denied"))
        assert await asyncio.wait_for(watcher.next_batch(), 5) == []
        await asyncio.wait_for(cacher.wait_ready(), 5)
        assert cacher.statistics().initializations == 2


async def test_case_70_an_undecodable_object_ends_all_watches_with_an_error() -> None:
    backend = FakeBackend()
    async with running(backend) as cacher:
        watchers = [await cacher.watch(WatchOptions()) for _ in range(10)]
        put(backend, "a")
        backend.put(f"{PREFIX}ns/bad", b"\xff not json")
        put(backend, "c")
        for watcher in watchers:
            events = []
            while batch := await asyncio.wait_for(watcher.next_batch(), 5):
                events += batch
            assert [event.kind for event in events] == ["ADDED", "ERROR"]
            assert isinstance(events[-1].error, CorruptObject)
