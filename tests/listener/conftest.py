"""The loop that members run on, for everything in this folder, and the servers of the conformance suites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from kvorum.certificates import Certificates, make_certificates
from tests.listener.bench import KINDS, Bench, serving

uvloop = pytest.importorskip("uvloop")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, certificates: Certificates) -> AsyncIterator[Bench]:
    async with serving(request.param, certificates) as found, found.connect() as client:
        found.client = client
        yield found
