"""The machine as Raft's application: images on their way in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raft.core.types import ConfState, Entry, Snapshot
from raft.errors import FatalError, Refused
from store.application import MachineApplication
from store.cluster import encode_conf_state
from store.etcdpb import internal_pb2, rpc_pb2
from store.images import CONF_STATE_KEY
from store.machine import META, Machine

CONF_STATE = ConfState((1, 2, 3))


@asynccontextmanager
async def application(directory: Path) -> AsyncIterator[tuple[MachineApplication, Machine]]:
    directory.mkdir(exist_ok=True)
    machine = await Machine.open(directory / "state.db")
    try:
        yield MachineApplication(machine, 1, directory), machine
    finally:
        await machine.close()


async def photographs(directory: Path) -> list[tuple[Snapshot, Path]]:
    """Images of one machine at three positions."""
    made = []
    async with application(directory) as (app, machine):
        machine.apply_system(1, 1, {(META, CONF_STATE_KEY): encode_conf_state(CONF_STATE)})
        for index in (2, 3, 4):
            put = internal_pb2.InternalRequest(put=rpc_pb2.PutRequest(key=b"k", value=b"%d" % index))
            app.apply(Entry(1, index), put.SerializeToString(), wanted=False)
            made.append(await app.make_image())
    return made


async def test_an_image_holds_its_position_and_configuration(tmp_path: Path) -> None:
    made = await photographs(tmp_path / "a")
    assert [snapshot for snapshot, _ in made] == [Snapshot(index, 1, CONF_STATE) for index in (2, 3, 4)]


async def test_an_accepted_image_stays_until_a_later_one_is_installed(tmp_path: Path) -> None:
    """The log may name the first already when the second arrives, or an older one is late."""
    two, three, four = await photographs(tmp_path / "a")
    async with application(tmp_path / "b") as (app, machine):
        for snapshot, image in (three, two, four):
            await app.accept_image(image, snapshot)
        await app.install_image(three[0])
        assert machine.applied_index == 3
        await app.install_image(four[0])
        assert machine.applied_index == 4
        assert list((tmp_path / "b").glob("accepted-*")) == []


async def test_an_interrupted_installation_is_finished_by_recover(tmp_path: Path) -> None:
    *_, (snapshot, image) = await photographs(tmp_path / "a")
    async with application(tmp_path / "b") as (app, _):
        await app.accept_image(image, snapshot)
    async with application(tmp_path / "b") as (app, machine):
        await app.recover(snapshot)
        assert (machine.applied_index, app.conf_state) == (snapshot.index, CONF_STATE)
        assert list((tmp_path / "b").glob("*.snap")) == []


async def test_an_image_that_is_not_what_it_was_announced_as_is_refused(tmp_path: Path) -> None:
    _, (snapshot, image), _ = await photographs(tmp_path / "a")
    async with application(tmp_path / "b") as (app, machine):
        with pytest.raises(Refused, match="holds entry 3, it was announced as 9"):
            await app.accept_image(image, snapshot._replace(index=9))
        image.write_bytes(b"no database" * 1000)
        with pytest.raises(OSError, match="no image of a state"):
            await app.accept_image(image, snapshot)
        with pytest.raises(FatalError, match="is missing: remove this member"):
            await app.install_image(snapshot)
        assert machine.applied_index == 0
