"""The object store, with and without a cache, over a model store and over etcd (cases A, B and C)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apiserver_adapter.leases import LeaseManager, lease_ttl_s
from apiserver_adapter.store import ObjectStore, Preconditions
from kvorum.backends import RemoteBackend
from store.client import EtcdClient
from tests.watchcache.fake import FakeBackend
from tests.watchcache.pods import assert_silent, pod, pod_resource, select, summary, take
from watchcache.backend import Backend, Put
from watchcache.cacher import Cacher
from watchcache.codec import Codec, Object, StoredObject
from watchcache.errors import (
    AlreadyExists,
    CorruptObject,
    Expired,
    InvalidContinue,
    InvalidKey,
    InvalidObject,
    InvalidOptions,
    NotFound,
    ResourceVersionSetOnCreate,
    StorageError,
    TooLargeResourceVersion,
)
from watchcache.options import EXACT, NOT_OLDER_THAN, ContinueToken, ListOptions, ListResult, WatchOptions
from watchcache.recovery import StoreRecovery

_MAX = str(2**63 - 1)
_worlds = itertools.count(1)


@dataclasses.dataclass
class World:
    """A store of pods, and the means to act behind its back."""

    backend: Backend
    codec: Codec
    store: ObjectStore

    @property
    def cached(self) -> bool:
        return self.store.cacher is not None

    def key(self, relative: str) -> str:
        return self.codec.resource.prefix + relative

    async def raw_put(self, key: str, value: bytes) -> int:
        """A write behind the store's back; returns the revision."""
        return (await self.backend.txn([], [Put(key.encode(), value)])).revision

    async def raw(self, relative: str) -> bytes:
        result = await self.backend.range(self.key(relative).encode())
        return result.kvs[0].value

    async def unrelated_write(self) -> int:
        return await self.raw_put("/registry/unrelated/x", b"{}")

    async def create(self, namespace: str, name: str, **kwargs: Any) -> StoredObject:
        return await self.store.create(f"{namespace}/{name}", pod(namespace, name, **kwargs))

    async def write(self, namespace: str, name: str, **kwargs: Any) -> StoredObject:
        return await self.store.guaranteed_update(
            f"{namespace}/{name}", lambda _: pod(namespace, name, **kwargs), ignore_not_found=True
        )

    async def list(self, **kwargs: Any) -> ListResult:
        return await self.store.list(ListOptions(**kwargs))

    async def current(self) -> int:
        return await self.store.current_version()

    async def caught_up(self, version: int) -> None:
        """Until the cache, if there is one, has taken in ``version``, the last write to this type."""
        if self.store.cacher is None:
            return
        watcher = await self.store.cacher.watch(WatchOptions(resource_version="0"))
        seen = self.store.cacher.statistics().version
        async with asyncio.timeout(5):
            while seen < version:
                seen = max(event.resource_version for event in await watcher.next_batch())
        await watcher.aclose()


@pytest.fixture(
    params=["model-direct", "model-cached", "etcd-direct", "etcd-cached", "kvorum-direct", "kvorum-cached"]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    kind, mode = request.param.split("-")
    async with contextlib.AsyncExitStack() as stack:
        backend: Backend = FakeBackend()
        if kind != "model":
            client = EtcdClient(request.getfixturevalue(f"{kind}_store"))
            stack.push_async_callback(client.aclose)
            backend = RemoteBackend(client)
        codec = Codec(pod_resource(f"/registry/pods-{next(_worlds)}/"))
        cacher = await stack.enter_async_context(caching(backend, codec)) if mode == "cached" else None
        yield World(backend, codec, ObjectStore(backend, codec, cacher))


@contextlib.asynccontextmanager
async def caching(backend: Backend, codec: Codec) -> AsyncIterator[Cacher]:
    """A running cache."""
    cacher = Cacher(backend, codec, StoreRecovery(backend))
    task = asyncio.create_task(cacher.run())
    await asyncio.wait_for(cacher.wait_ready(), 5)
    yield cacher
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def names(result: ListResult) -> list[str]:
    return [f"{item.namespace}/{item.name}" for item in result.items]


@dataclasses.dataclass
class Seed:
    """The multi-level seed: ``versions[k]`` is the revision after write k."""

    versions: list[int]
    last: int


async def seed(world: World) -> Seed:
    versions = [await world.current()]
    for path in ("first/bar", "second/bar", "second/foo", "third/barfoo", "third/foo", "second/baz"):
        namespace, name = path.split("/")
        versions.append((await world.create(namespace, name)).resource_version)
    versions.append((await world.write("first", "bar", node="n1")).resource_version)
    versions.append((await world.store.delete("second/baz")).resource_version)
    return Seed(versions, await world.unrelated_write())


# --- A. create, get, delete, update -----------------------------------------------------------------------------


async def test_case_1_create_returns_a_version_that_is_not_stored(world: World) -> None:
    created = await world.create("ns", "foo")
    assert created.resource_version > 0
    assert b"resourceVersion" not in await world.raw("ns/foo")
    assert created.decode()["metadata"]["resourceVersion"] == str(created.resource_version)


async def test_case_2_create_with_a_version_is_refused(world: World) -> None:
    obj = pod("ns", "foo")
    obj["metadata"]["resourceVersion"] = "1"
    with pytest.raises(ResourceVersionSetOnCreate):
        await world.store.create("ns/foo", obj)
    with pytest.raises(NotFound):
        await world.store.get("ns/foo")


async def test_case_3_create_of_an_existing_key_changes_nothing(world: World) -> None:
    await world.create("ns", "foo", node="a")
    before = await world.raw("ns/foo")
    with pytest.raises(AlreadyExists):
        await world.create("ns", "foo", node="b")
    assert await world.raw("ns/foo") == before


async def test_cases_6_7_get_returns_the_newest_for_every_version_up_to_now(world: World) -> None:
    created = await world.create("ns", "foo")
    updated = await world.write("ns", "foo", node="n")
    other = await world.create("ns", "bar")
    for version in ("", str(updated.resource_version), str(other.resource_version)):
        assert (await world.store.get("ns/foo", version)).resource_version == updated.resource_version
    older = await world.store.get("ns/foo", str(created.resource_version))
    assert older.resource_version in (created.resource_version, updated.resource_version)


async def test_case_9_get_from_the_far_future_is_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    await world.create("ns", "foo")
    with pytest.raises(TooLargeResourceVersion, match="Too large resource version"):
        await world.store.get("ns/foo", _MAX)


async def test_case_10_get_of_an_absent_key(world: World) -> None:
    with pytest.raises(NotFound):
        await world.store.get("ns/foo")


async def test_case_11_delete_returns_the_content_under_the_deletions_version(world: World) -> None:
    created = await world.create("ns", "foo", node="n")
    deleted = await world.store.delete("ns/foo")
    assert deleted.resource_version == await world.current() > created.resource_version
    assert deleted.decode()["spec"] == {"nodeName": "n"}
    with pytest.raises(NotFound):
        await world.store.delete("ns/foo")


async def test_case_13_delete_with_another_uid_is_refused(world: World) -> None:
    await world.create("ns", "foo")
    with pytest.raises(InvalidObject, match="UID in precondition: other, UID in object meta: uid-foo"):
        await world.store.delete("ns/foo", preconditions=Preconditions(uid="other"))
    assert (await world.store.get("ns/foo")).name == "foo"
    await world.store.delete("ns/foo", preconditions=Preconditions(uid="uid-foo"))


async def test_case_14_delete_with_a_stale_hint_returns_the_live_content(world: World) -> None:
    stale = await world.create("ns", "foo")
    await world.write("ns", "foo", node="live")
    deleted = await world.store.delete("ns/foo", hint=stale)
    assert deleted.decode()["spec"] == {"nodeName": "live"}


async def test_case_15_an_update_during_validation_makes_it_run_again(world: World) -> None:
    first = await world.create("ns", "foo")
    calls: list[int] = []

    def validate(current: StoredObject) -> None:
        calls.append(current.resource_version)

    await world.write("ns", "foo", node="sneaked-in")
    deleted = await world.store.delete("ns/foo", validate=validate, hint=first)
    assert len(calls) == 2
    assert deleted.decode()["spec"] == {"nodeName": "sneaked-in"}


async def test_case_17_a_failing_validation_is_final_on_live_state_only(world: World) -> None:
    stale = await world.create("ns", "foo")
    live = await world.write("ns", "foo", node="ok")
    calls: list[int] = []

    def refuse(current: StoredObject) -> None:
        calls.append(current.resource_version)
        raise StorageError("refused")

    with pytest.raises(StorageError, match="refused"):
        await world.store.delete("ns/foo", validate=refuse)
    assert calls[-1] == live.resource_version

    def only_live(current: StoredObject) -> None:
        calls.append(current.resource_version)
        if current.resource_version != live.resource_version:
            raise StorageError("stale")

    calls.clear()
    await world.store.delete("ns/foo", validate=only_live, hint=stale)
    assert calls == [stale.resource_version, live.resource_version]


async def test_case_18_a_stale_hint_that_passes_does_not_delete_a_live_object_that_fails(world: World) -> None:
    stale = await world.create("ns", "foo")
    await world.write("ns", "foo", node="protected")

    def not_protected(current: StoredObject) -> None:
        if b"protected" in current.raw:
            raise StorageError("protected")

    with pytest.raises(StorageError, match="protected"):
        await world.store.delete("ns/foo", validate=not_protected, hint=stale)
    assert (await world.store.get("ns/foo")).name == "foo"


async def test_case_19_the_precondition_is_checked_against_the_live_object(world: World) -> None:
    stale = await world.create("ns", "foo")
    await world.store.delete("ns/foo")
    replaced = pod("ns", "foo")
    replaced["metadata"]["uid"] = "second"
    await world.store.create("ns/foo", replaced)
    with pytest.raises(InvalidObject):
        await world.store.delete("ns/foo", preconditions=Preconditions(uid="uid-foo"), hint=stale)
    await world.store.delete("ns/foo", preconditions=Preconditions(uid="second"), hint=stale)


async def test_case_21_an_identical_update_writes_nothing(world: World) -> None:
    created = await world.create("ns", "foo")
    revision = await world.current()

    def with_self_link(current: StoredObject | None) -> Object:
        obj = pod("ns", "foo")
        obj["metadata"]["selfLink"] = "/x"
        return obj

    for update in (lambda _: pod("ns", "foo"), with_self_link):
        same = await world.store.guaranteed_update("ns/foo", update)
        assert same.resource_version == created.resource_version
    assert await world.current() == revision
    assert b"selfLink" not in await world.raw("ns/foo")


async def test_case_22_an_object_in_a_stale_form_is_rewritten(world: World) -> None:
    class Marked:
        def __init__(self, mark: bytes) -> None:
            self.mark = mark

        def from_storage(self, data: bytes, key: bytes) -> tuple[bytes, bool]:
            return data[1:], data[:1] != self.mark

        def to_storage(self, data: bytes, key: bytes) -> bytes:
            return self.mark + data

    resource = pod_resource("/registry/marked/")
    old = ObjectStore(world.backend, Codec(resource, Marked(b"1")))
    new = ObjectStore(world.backend, Codec(resource, Marked(b"2")))
    created = await old.create("ns/foo", pod("ns", "foo"))
    rewritten = await new.guaranteed_update("ns/foo", lambda _: pod("ns", "foo"))
    assert rewritten.resource_version > created.resource_version
    again = await new.guaranteed_update("ns/foo", lambda _: pod("ns", "foo"))
    assert again.resource_version == rewritten.resource_version
    await new.delete("ns/foo")


async def test_case_23_stored_bytes_that_are_not_canonical_are_rewritten_once(world: World) -> None:
    created = await world.create("ns", "foo")
    loose = b'{"kind":"Pod", "apiVersion":"v1","metadata":{"uid":"uid-foo","name":"foo","namespace":"ns"}}'
    await world.raw_put(world.key("ns/foo"), loose)
    first = await world.store.guaranteed_update("ns/foo", lambda _: pod("ns", "foo"), hint=created)
    assert await world.raw("ns/foo") != loose
    second = await world.store.guaranteed_update("ns/foo", lambda _: pod("ns", "foo"), hint=first)
    assert second.resource_version == first.resource_version


async def test_case_25_a_conflict_on_a_stale_hint_is_tried_again_on_live_state(world: World) -> None:
    stale = await world.create("ns", "foo")
    live = await world.write("ns", "foo", node="live")
    calls: list[int] = []

    def update(current: StoredObject | None) -> Object:
        assert current is not None
        calls.append(current.resource_version)
        if current.resource_version != live.resource_version:
            raise StorageError("conflict")
        return pod("ns", "foo", node="new")

    await world.store.guaranteed_update("ns/foo", update, hint=stale)
    assert calls == [stale.resource_version, live.resource_version]
    calls.clear()
    with pytest.raises(StorageError):
        await world.store.guaranteed_update("ns/foo", update)
    assert len(calls) <= 2


async def test_concurrent_updates_all_take_effect(world: World) -> None:
    await world.create("ns", "foo", node="0")

    def increment(current: StoredObject | None) -> Object:
        assert current is not None
        return pod("ns", "foo", node=str(int(current.decode()["spec"]["nodeName"]) + 1))

    await asyncio.gather(*(world.store.guaranteed_update("ns/foo", increment) for _ in range(20)))
    assert (await world.store.get("ns/foo")).decode()["spec"] == {"nodeName": "20"}


async def test_case_26_an_undecodable_object_is_an_internal_error_and_stays(world: World) -> None:
    await world.create("ns", "good")
    if world.cached:
        pytest.skip("with a cache the whole type starts over: see the cache's own tests")
    await world.raw_put(world.key("ns/bad"), b"\xffgarbage")
    with pytest.raises(CorruptObject):
        await world.list()
    with pytest.raises(CorruptObject):
        await world.store.get("ns/bad")
    with pytest.raises(CorruptObject):
        await world.store.guaranteed_update("ns/bad", lambda _: pod("ns", "bad"))
    with pytest.raises(CorruptObject):
        await world.store.delete("ns/bad")
    assert await world.raw("ns/bad") == b"\xffgarbage"


@pytest.mark.parametrize("key", ["", "/", "..", "../x", "a/../b", "a/..", ".", "./x", "a/./b", "a//b"])
async def test_case_27_keys_that_could_leave_their_prefix_are_refused(key: str) -> None:
    store = ObjectStore(FakeBackend(), Codec(pod_resource()))
    for operation in (
        store.get(key),
        store.create(key, pod("a", "b")),
        store.delete(key),
        store.guaranteed_update(key, lambda _: pod("a", "b")),
    ):
        with pytest.raises(InvalidKey):
            await operation


@pytest.mark.parametrize("name", ["..x", "x..", "..."])
async def test_case_27_dots_inside_a_name_are_fine(name: str) -> None:
    store = ObjectStore(FakeBackend(), Codec(pod_resource()))
    assert (await store.create(f"ns/{name}", pod("ns", name))).name == name


async def test_case_5_an_object_with_a_time_to_live_is_deleted_by_the_store(backend: RemoteBackend) -> None:
    codec = Codec(pod_resource("/registry/short-lived/"))
    store = ObjectStore(backend, codec)
    start = await store.current_version()
    await store.guaranteed_update("ns/foo", lambda _: pod("ns", "foo"), ignore_not_found=True, ttl_s=1)
    watcher = await store.watch(WatchOptions(resource_version=str(start)))
    assert summary(await take(watcher, 2, limit_s=15)) == [("ADDED", "foo"), ("DELETED", "foo")]
    await watcher.aclose()


async def test_case_115_leases_are_shared_while_they_last() -> None:
    assert (lease_ttl_s(3600), lease_ttl_s(1000)) == (3660, 1050)
    backend, now = FakeBackend(), [0.0]
    leases = LeaseManager(backend, objects_max=2, clock=lambda: now[0])
    assert [await leases.lease_for(3600) for _ in range(3)] == [1, 1, 2]
    now[0] += 59
    assert await leases.lease_for(3600) == 2
    now[0] += 10
    assert await leases.lease_for(3600) == 3
    assert backend.leases == {1: 3660, 2: 3660, 3: 3660}


async def test_case_117_the_current_version_counts_every_write(world: World) -> None:
    assert await world.unrelated_write() == await world.current()
    created = await world.create("ns", "foo")
    assert created.resource_version == await world.current()


# --- B. list ----------------------------------------------------------------------------------------------------


async def test_case_29_a_version_and_a_token_exclude_each_other(world: World) -> None:
    token = ContinueToken(5, "first/bar\0").encode()
    with pytest.raises(InvalidContinue):
        await world.list(resource_version="1", continue_token=token)


async def test_case_30_list_from_the_far_future_is_too_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    await seed(world)
    with pytest.raises(TooLargeResourceVersion):
        await world.list(resource_version=_MAX)


async def test_case_31_a_list_of_now_carries_the_stores_revision(world: World) -> None:
    seeded = await seed(world)
    result = await world.list(namespace="first")
    assert names(result) == ["first/bar"]
    assert result.items[0].decode()["spec"] == {"nodeName": "n1"}
    assert result.resource_version == seeded.last


async def test_case_33_exact_before_the_first_object_is_empty(world: World) -> None:
    seeded = await seed(world)
    version = seeded.versions[1]
    result = await world.list(namespace="second", resource_version=str(version), match=EXACT)
    assert (list(result.items), result.resource_version) == ([], version)


async def test_cases_34_61_exact_below_the_compaction_is_expired(world: World) -> None:
    seeded = await seed(world)
    await world.backend.compact(seeded.versions[1])
    with pytest.raises(Expired, match="The resourceVersion for the provided list is too old"):
        await world.list(resource_version=str(seeded.versions[0]), match=EXACT)
    await world.caught_up(seeded.versions[8])
    result = await world.list(resource_version=str(seeded.versions[0]), match=NOT_OLDER_THAN)  # case 35
    assert len(result.items) == 5


async def test_case_37_the_first_page_says_where_to_go_on(world: World) -> None:
    seeded = await seed(world)
    result = await world.list(namespace="second", limit=1)
    assert (names(result), result.remaining, result.resource_version) == (["second/bar"], 1, seeded.last)
    assert ContinueToken.decode(result.continue_token) == ContinueToken(seeded.last, "bar\0")


async def test_case_39_version_zero_with_a_limit(world: World) -> None:
    seeded = await seed(world)
    await world.caught_up(seeded.versions[8])
    result = await world.list(resource_version="0", limit=1)
    assert bool(result.continue_token) is not world.cached
    assert len(result.items) == (5 if world.cached else 1)


async def test_case_41_exact_shows_every_step_of_the_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    seeded = await seed(world)
    state: list[str] = []
    paths = ("first/bar", "second/bar", "second/foo", "third/barfoo", "third/foo", "second/baz")
    for step, path in enumerate(paths, 1):
        state = sorted([*state, path])
        result = await world.list(resource_version=str(seeded.versions[step]), match=EXACT)
        assert (names(result), result.resource_version) == (state, seeded.versions[step])
    result = await world.list(resource_version=str(seeded.versions[8]), match=EXACT)
    assert "second/baz" not in names(result)
    result = await world.list(resource_version=str(seeded.last), match=EXACT)
    assert result.resource_version == seeded.last
    with pytest.raises(TooLargeResourceVersion):
        await world.list(resource_version=str(seeded.last + 1), match=EXACT)


async def test_case_42_exact_with_a_limit_keeps_its_revision_in_the_token(world: World) -> None:
    seeded = await seed(world)
    result = await world.list(resource_version=str(seeded.versions[5]), match=EXACT, limit=1)
    assert ContinueToken.decode(result.continue_token).resource_version == seeded.versions[5]
    assert result.remaining == 4


async def test_case_43_a_token_reads_at_its_revision_or_is_expired(world: World) -> None:
    seeded = await seed(world)
    token = ContinueToken(seeded.versions[6], "second/bar\0").encode()
    result = await world.list(continue_token=token)
    assert names(result) == ["second/baz", "second/foo", "third/barfoo", "third/foo"]
    assert result.resource_version == seeded.versions[6]
    await world.backend.compact(seeded.versions[7])
    with pytest.raises(Expired, match="The provided continue parameter is too old") as caught:
        await world.list(continue_token=token)
    offered = ContinueToken.decode(caught.value.continue_token)
    assert offered == ContinueToken(-1, "second/bar\0")


@pytest.mark.parametrize(
    "token",
    [
        ContinueToken(5, "").encode(),
        ContinueToken(0, "a\0").encode(),
        ContinueToken(5, "../x\0").encode(),
        "!!!",
        "bm90IGpzb24",
    ],
)
async def test_case_45_a_malformed_token_is_refused(token: str) -> None:
    store = ObjectStore(FakeBackend(), Codec(pod_resource()))
    with pytest.raises(InvalidContinue):
        await store.list(ListOptions(continue_token=token))


async def test_case_46_version_zero_beside_a_token_is_ignored(world: World) -> None:
    seeded = await seed(world)
    token = ContinueToken(seeded.versions[6], "second/bar\0").encode()
    result = await world.list(continue_token=token, resource_version="0", limit=1)
    assert names(result) == ["second/baz"]


async def test_cases_47_49_a_selective_page_has_a_token_while_keys_remain_but_no_count(world: World) -> None:
    await seed(world)
    predicate = select(fields="metadata.name=barfoo")
    one = await world.list(predicate=predicate, limit=1)
    assert names(one) == ["third/barfoo"]
    assert one.continue_token
    assert one.remaining is None
    two = await world.list(predicate=predicate, limit=2)
    assert (names(two), two.continue_token) == (["third/barfoo"], "")


async def test_case_50_a_deleted_object_is_not_selected(world: World) -> None:
    await seed(world)
    version = str(await world.current())
    result = await world.list(
        predicate=select(fields="metadata.name=baz"), resource_version=version, match=NOT_OLDER_THAN
    )
    assert list(result.items) == []


async def test_case_51_a_list_of_an_empty_prefix_is_current(world: World) -> None:
    await world.create("ns", "foo")
    revision = await world.unrelated_write()
    result = await world.list(namespace="empty")
    assert (list(result.items), result.resource_version) == ([], revision)
    assert (await world.list(namespace="empty", resource_version="0")).resource_version <= revision


async def test_case_53_a_list_of_one_name_reads_that_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    created = await world.create("ns", "foo")
    updated = await world.write("ns", "foo", node="n")
    single = {"namespace": "ns", "predicate": select(fields="metadata.name=foo")}
    old = await world.list(resource_version=str(created.resource_version), match=EXACT, **single)
    assert old.items[0].resource_version == created.resource_version
    new = await world.list(**single)
    assert new.items[0].resource_version == updated.resource_version
    with pytest.raises(TooLargeResourceVersion):
        await world.list(resource_version=_MAX, match=EXACT, **single)


async def test_cases_54_57_pages_keep_the_first_revision_and_the_original_names(world: World) -> None:
    for name in "abcd":
        await world.create("ns", name)
    page = await world.list(limit=1)
    first, seen, calls = page.resource_version, names(page), 1
    while page.continue_token:
        if calls == 2:
            await world.create("ns", "e")
        page = await world.list(limit=1, continue_token=page.continue_token)
        assert page.resource_version == first
        seen += names(page)
        calls += 1
    assert (seen, calls) == (["ns/a", "ns/b", "ns/c", "ns/d"], 4)


async def test_case_55_a_rare_object_is_found_in_one_page(world: World) -> None:
    for number in range(120):
        await world.raw_put(world.key(f"ns/p{number:03}"), world.codec.encode(pod("ns", f"p{number:03}")))
    result = await world.list(predicate=select(fields="metadata.name=p119"), limit=1)
    assert (names(result), result.continue_token) == (["ns/p119"], "")


async def test_case_58_an_expired_continue_can_go_on_inconsistently(world: World) -> None:
    for name in "abc":
        await world.create("ns", name)
    page = await world.list(limit=1)
    updated = await world.write("ns", "a", node="n")
    await world.backend.compact(updated.resource_version)
    with pytest.raises(Expired) as caught:
        await world.list(limit=1, continue_token=page.continue_token)
    second = await world.list(limit=1, continue_token=caught.value.continue_token)
    assert names(second) == ["ns/b"]
    assert second.resource_version >= updated.resource_version
    third = await world.list(limit=1, continue_token=second.continue_token)
    assert (names(third), third.resource_version) == (["ns/c"], second.resource_version)


async def test_case_59_a_page_is_the_state_at_its_revision(world: World) -> None:
    for number in range(12):
        await world.create("ns", f"p{number:02}", labels={"even": str(number % 2 == 0).lower()})
    writes = asyncio.gather(*(world.create("ns", f"q{n:02}", labels={"even": "true"}) for n in range(8)))
    page = await world.list(predicate=select(labels="even=true"), limit=4)
    await writes
    again = await world.list(
        predicate=select(labels="even=true"), limit=4, resource_version=str(page.resource_version), match=EXACT
    )
    assert names(again) == names(page)


@pytest.mark.parametrize(
    "options",
    [
        ListOptions(match=EXACT),
        ListOptions(match=NOT_OLDER_THAN),
        ListOptions(resource_version="0", match=EXACT),
        ListOptions(resource_version="5", match="Newest"),
        ListOptions(match=EXACT, continue_token="x"),
    ],
)
async def test_contradictory_list_options_are_invalid(options: ListOptions) -> None:
    with pytest.raises(InvalidOptions):
        await ObjectStore(FakeBackend(), Codec(pod_resource())).list(options)


# --- C. watch ---------------------------------------------------------------------------------------------------


async def test_case_62_a_watch_from_the_list_version_sees_everything_after_it(world: World) -> None:
    listed = await world.list()
    watcher = await world.store.watch(WatchOptions(resource_version=str(listed.resource_version)))
    await world.create("ns", "foo")
    await world.write("ns", "foo", node="n")
    deleted = await world.store.delete("ns/foo")
    await world.unrelated_write()
    events = await take(watcher, 3)
    assert summary(events) == [("ADDED", "foo"), ("MODIFIED", "foo"), ("DELETED", "foo")]
    assert events[2].object is not None
    assert events[2].object.resource_version == deleted.resource_version  # case 73
    await assert_silent(watcher)
    await watcher.aclose()


async def test_case_63_entering_the_selection_is_added(world: World) -> None:
    created = await world.create("ns", "foo")
    options = WatchOptions(
        predicate=select(fields="spec.nodeName=bar"), resource_version=str(created.resource_version)
    )
    watcher = await world.store.watch(options)
    await world.write("ns", "foo", node="bar")
    assert summary(await take(watcher, 1)) == [("ADDED", "foo")]
    await watcher.aclose()


async def test_case_65_label_changes_are_added_and_deleted(world: World) -> None:
    start = str(await world.current())
    watcher = await world.store.watch(WatchOptions(predicate=select(labels="a=b"), resource_version=start))
    await world.create("ns", "foo", labels={"a": "b"})
    await world.write("ns", "foo")
    await world.write("ns", "foo", labels={"a": "b"})
    await world.write("ns", "foo", labels={"a": "b"}, node="n")
    await world.store.delete("ns/foo")
    kinds = [kind for kind, _ in summary(await take(watcher, 5))]
    assert kinds == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    await watcher.aclose()


async def test_case_66_a_watch_from_zero_begins_with_the_state(world: World) -> None:
    created = await world.create("ns", "foo")
    await world.caught_up(created.resource_version)
    watcher = await world.store.watch(WatchOptions(resource_version="0"))
    assert summary(await take(watcher, 1)) == [("ADDED", "foo")]
    await world.write("ns", "foo", node="n")
    assert summary(await take(watcher, 1)) == [("MODIFIED", "foo")]
    await watcher.aclose()


async def test_case_67_a_watch_from_a_compacted_version(world: World) -> None:
    created = await world.create("ns", "foo")
    updated = await world.write("ns", "foo", node="n")
    await world.caught_up(updated.resource_version)
    await world.backend.compact(updated.resource_version)
    if world.cached:
        # The history of the cache still reaches back: compaction does not touch it (contract §2.3).
        watcher = await world.store.watch(WatchOptions(resource_version=str(created.resource_version)))
        assert summary(await take(watcher, 1)) == [("MODIFIED", "foo")]
    else:
        watcher = await world.store.watch(WatchOptions(resource_version=str(created.resource_version - 1)))
        (event,) = await take(watcher, 1)
        assert event.kind == "ERROR"
        assert isinstance(event.error, Expired)
        assert await watcher.next_batch() == []
    await watcher.aclose()


async def test_case_74_progress_becomes_a_bookmark_without_a_cache() -> None:
    backend = FakeBackend()
    store = ObjectStore(backend, Codec(pod_resource()))
    watcher = await store.watch(WatchOptions(resource_version="1", progress_notify=True))
    reading = asyncio.create_task(watcher.next_batch())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    backend.put("/registry/unrelated/x", b"{}")
    await backend.watches[0].request_progress()
    (event,) = await reading
    assert (event.kind, event.resource_version) == ("BOOKMARK", backend.revision)
    await watcher.aclose()


async def test_case_75_watches_by_name_and_by_field(world: World) -> None:
    start = str(await world.current())

    async def watching(fields: str) -> Any:
        return await world.store.watch(WatchOptions(predicate=select(fields=fields), resource_version=start))

    by_name = await watching("metadata.name=t1")
    by_node = await watching("spec.nodeName=n1")
    by_both = await watching("metadata.name=t1,spec.nodeName=n1")
    not_n1 = await watching("spec.nodeName!=n1")
    await world.create("ns", "t1")
    await world.write("ns", "t1", node="n1")
    await world.create("ns", "t2", node="n1")
    assert summary(await take(by_name, 2)) == [("ADDED", "t1"), ("MODIFIED", "t1")]
    assert summary(await take(by_node, 2)) == [("ADDED", "t1"), ("ADDED", "t2")]
    assert summary(await take(by_both, 1)) == [("ADDED", "t1")]
    assert summary(await take(not_n1, 2)) == [("ADDED", "t1"), ("DELETED", "t1")]
    for watcher in (by_name, by_node, by_both, not_n1):
        await watcher.aclose()


@pytest.mark.parametrize("version", ["", "0", "1", "current"])
@pytest.mark.parametrize("bookmarks", [True, False])
async def test_case_79_watch_list(world: World, version: str, bookmarks: bool) -> None:
    for name in "cab":
        last = await world.create("ns", name)
    await world.caught_up(last.resource_version)
    asked = str(await world.current()) if version == "current" else version
    watcher = await world.store.watch(
        WatchOptions(
            resource_version=asked, match=NOT_OLDER_THAN, send_initial_events=True, allow_bookmarks=bookmarks
        )
    )
    events = await take(watcher, 3 + bookmarks) if not world.cached else await take(watcher, 3)
    if bookmarks:
        if world.cached:
            events += await take(watcher, 1)
        assert events[-1].kind == "BOOKMARK"
        assert events[-1].initial_events_end
        assert events[-1].resource_version >= last.resource_version
    assert summary(events[:3]) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    for name in "de":
        await world.create("ns", name)
    assert summary(await take(watcher, 2)) == [("ADDED", "d"), ("ADDED", "e")]
    await watcher.aclose()


async def test_case_81_a_watch_list_of_one_name(world: World) -> None:
    for number in range(5):
        last = await world.create("ns", f"pod-{number}")
    watcher = await world.store.watch(
        WatchOptions(
            predicate=select(fields="metadata.name=pod-1"),
            match=NOT_OLDER_THAN,
            send_initial_events=True,
            allow_bookmarks=True,
        )
    )
    events = await watcher.next_batch()
    if len(events) < 2:
        events += await watcher.next_batch()
    assert summary(events) == [("ADDED", "pod-1"), ("BOOKMARK", "")]
    assert events[1].resource_version >= last.resource_version
    await watcher.aclose()


async def test_case_83_a_watch_list_from_the_future_is_too_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchcache.cacher.FRESHNESS_LIMIT_S", 0.05)
    future = str(await world.current() + 100)
    with pytest.raises(TooLargeResourceVersion) as caught:
        await world.store.watch(
            WatchOptions(resource_version=future, match=NOT_OLDER_THAN, send_initial_events=True)
        )
    assert caught.value.retry_after_s > 0


@pytest.mark.parametrize(
    "options",
    [
        WatchOptions(send_initial_events=True),
        WatchOptions(match=NOT_OLDER_THAN),
        WatchOptions(send_initial_events=True, match=EXACT),
    ],
)
async def test_contradictory_watch_options_are_invalid(options: WatchOptions) -> None:
    with pytest.raises(InvalidOptions):
        await ObjectStore(FakeBackend(), Codec(pod_resource())).watch(options)


async def test_a_write_that_loses_the_race_is_redone_on_what_won() -> None:
    backend = FakeBackend()
    codec = Codec(pod_resource())
    store = ObjectStore(backend, codec)
    await store.create("ns/foo", pod("ns", "foo", node="0"))
    key = "/registry/pods/ns/foo"

    def win() -> None:
        backend.put(key, codec.encode(pod("ns", "foo", node="5")))

    backend.before_txn = win

    def increment(current: StoredObject | None) -> Object:
        assert current is not None
        return pod("ns", "foo", node=str(int(current.decode()["spec"]["nodeName"]) + 1))

    ranges_before = backend.calls.get("range", 0)
    updated = await store.guaranteed_update("ns/foo", increment)
    assert updated.decode()["spec"] == {"nodeName": "6"}
    # The failed transaction brought the live object along: no second read.
    assert backend.calls["range"] - ranges_before == 1
