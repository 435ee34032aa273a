"""The server's own compaction (case D 114)."""

from __future__ import annotations

import asyncio

from apiserver_adapter.compactor import Compactor
from tests.watchcache.fake import FakeBackend


async def test_case_114_each_round_compacts_to_the_revision_of_the_round_before() -> None:
    backend = FakeBackend()
    compactor = Compactor(backend)
    assert await compactor.round() == 0
    recorded = backend.revision
    for _ in range(3):
        backend.put("/x", b"")
        assert await compactor.round() == recorded
        assert backend.compacted == recorded
        recorded = backend.revision


async def test_case_114_of_two_compactors_one_wins_and_the_other_adopts_its_clock() -> None:
    backend = FakeBackend()
    first, second = Compactor(backend), Compactor(backend)
    await first.round()
    assert await second.round() == 0
    seen_by_second = backend.revision
    backend.put("/x", b"")
    assert await second.round() == seen_by_second
    assert await first.round() == 0


async def test_case_114_an_interval_of_zero_never_compacts() -> None:
    backend = FakeBackend()
    async with asyncio.timeout(1):
        await Compactor(backend, 0).run()
    assert "txn" not in backend.calls
