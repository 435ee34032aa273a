"""A fresh member of Kvorum and a fresh etcd, one member each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.snapshot.etcd import etcd
from tests.store.processes import members

READY_S = 20.0


@contextlib.contextmanager
def pair(directory: Path) -> Iterator[tuple[str, str]]:
    """The endpoints of both: ours, theirs."""
    (directory / "kvorum").mkdir()
    with (
        etcd(directory / "etcd", "--unsafe-no-fsync", "--log-level", "error") as theirs,
        members(directory / "kvorum", "--unsafe-no-fsync", count=1) as ours,
    ):
        for endpoint in (ours[0].endpoint, theirs):
            with grpc.insecure_channel(endpoint) as channel:
                grpc.channel_ready_future(channel).result(READY_S)
        yield ours[0].endpoint, theirs
