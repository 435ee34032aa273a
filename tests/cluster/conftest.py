"""Fixtures that start real processes. A cluster that a test damages is the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import LocalCluster


def _running(directory: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory / "cluster")
    done = cluster.up()
    assert done.code == 0, f"{done.err}\n{cluster.logs()}"
    try:
        yield cluster
    finally:
        cluster.down()
    assert cluster.layout.running() == []


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three members and an API server for one test, which may hurt them."""
    yield from _running(tmp_path)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members and an API server for a whole file of tests that leave them whole."""
    yield from _running(tmp_path_factory.mktemp("shared"))
