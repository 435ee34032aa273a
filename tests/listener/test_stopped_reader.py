"""A client that stops reading its watch: bounded memory, nobody disturbed, nothing lost."""

from __future__ import annotations

from tests.listener import stopped_reader

GROWTH_BYTES = 16 * 1024 * 1024


async def test_a_reader_that_stops_costs_a_member_less_than_16_mb_and_catches_up() -> None:
    """32 MB pending here; ``python -m tests.listener.stopped_reader`` makes it a gigabyte, and other kinds."""
    figures = await stopped_reader.measure(32, "history", warm_up=24)
    assert figures.received == 32 + stopped_reader.MORE
    assert figures.stopped_growth < GROWTH_BYTES
    assert figures.growth < GROWTH_BYTES
    assert figures.worst_get_s < 1
