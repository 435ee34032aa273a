"""The virtual clock: a run that cannot end is told, instead of ticking on for ever."""

from __future__ import annotations

import asyncio

import pytest

from chaos import virtual


async def _wait_beside_ticks() -> None:
    loop = asyncio.get_running_loop()

    def tick() -> None:
        loop.call_later(1.0, tick)

    tick()
    await asyncio.Event().wait()


async def _wait() -> None:
    await asyncio.Event().wait()


def test_a_run_in_which_only_timers_go_on_is_stuck() -> None:
    with pytest.raises(virtual.Stuck, match="has not ended"):
        virtual.run(_wait_beside_ticks())


def test_a_run_in_which_nothing_can_happen_is_stuck() -> None:
    with pytest.raises(virtual.Stuck, match="no timer"):
        virtual.run(_wait())
