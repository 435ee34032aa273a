"""Mutated frames: refused or served, never an exception, never a slow turn, nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.listener.fuzz import fuzz


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_mutated_frames(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
    with caplog.at_level(logging.ERROR):
        outcome = await fuzz(2000, seed)
    assert not problems
    assert not caplog.records
    assert 0 < outcome.refused < outcome.connections
    assert outcome.slowest_s < 0.5
    assert len(asyncio.all_tasks()) == 1
