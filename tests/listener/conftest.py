"""The loop that members run on, for everything in this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

uvloop = pytest.importorskip("uvloop")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
