"""The state machine as Raft's application: entries in, results out, configuration kept with the data."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from raft import sqlite
from raft.core.types import ConfChangeV2, ConfState, Entry, Snapshot
from raft.errors import FatalError, Refused
from store.cluster import (
    DEFAULT_MAX_LEARNERS,
    MEMBERS,
    MEMBERS_REMOVED,
    NO_LEARNER_LIMIT,
    ClusterError,
    MemberChange,
    Membership,
    decode_conf_state,
    decode_member,
    encode_conf_state,
    member_key,
)
from store.errors import Code, EtcdError
from store.etcdpb import internal_pb2
from store.machine import META, Machine
from store.observations import Observations
from store.state import read_applied

CONF_STATE_KEY = b"confState"


class MachineApplication:
    """A raft.application.Application over a Machine."""

    def __init__(
        self, machine: Machine, max_learners: int, image_dir: Path, observations: Observations | None = None
    ) -> None:
        self._machine = machine
        self._observations = observations or Observations()
        self._image_dir = image_dir
        self._images_made = 0
        self._own_record: bytes | None = None
        self._own_is_learner = False
        self._max_learners = max_learners
        self.on_membership: Callable[[], None] = _nothing
        """Called when members may have changed; must not block."""

    @property
    def membership(self) -> Membership:
        return membership_of(self._machine, self._max_learners)

    def is_learner(self, member_id: int) -> bool:
        """Asked for every call that a client makes, so the stored record is decoded only when it has changed."""
        record = self._machine.bucket(MEMBERS).get(member_key(member_id))
        if record is not self._own_record:
            self._own_record = record
            self._own_is_learner = record is not None and decode_member(record).is_learner
        return self._own_is_learner

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index

    @property
    def durable_index(self) -> int:
        return self._machine.durable_index

    @property
    def conf_state(self) -> ConfState:
        stored = self._machine.bucket(META).get(CONF_STATE_KEY)
        return ConfState() if stored is None else decode_conf_state(stored)

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        try:
            request = internal_pb2.InternalRequest.FromString(payload)
        except DecodeError:
            # Every member sees the same bytes, so every member skips them alike.
            self._machine.apply_system(entry.index, entry.term, {})
            return EtcdError(Code.UNKNOWN, "kvorum: the replicated command cannot be decoded")
        began = time.perf_counter()
        outcome = self._machine.apply(entry.index, entry.term, request)
        self._observations.applied(time.perf_counter() - began, entry.index, request)
        if request.HasField("member_attributes"):
            self.on_membership()
        return outcome

    def apply_empty(self, entry: Entry) -> None:
        self._machine.apply_system(entry.index, entry.term, {})

    def check_conf_change(self, entry: Entry, change: ConfChangeV2, payload: bytes) -> ClusterError | None:
        # The limit of learners is a member's own flag: checked where a change is proposed, never where it applies.
        return membership_of(self._machine, NO_LEARNER_LIMIT).check(MemberChange.decode(payload))

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        writes: dict[tuple[str, bytes], bytes | None] = {(META, CONF_STATE_KEY): encode_conf_state(conf_state)}
        if payload:
            for bucket, key, value in self.membership.writes(MemberChange.decode(payload)):
                writes[bucket, key] = value
        self._machine.apply_system(entry.index, entry.term, writes)
        self.on_membership()
        return self.membership.members()

    async def room(self) -> None:
        await self._machine.backpressure()

    async def make_durable(self) -> None:
        await self._machine.flush()
        await self._machine.checkpoint()

    async def make_image(self) -> tuple[Snapshot, Path]:
        self._images_made += 1
        path = self._image_dir / f"outgoing-{self._images_made}.snap"
        try:
            path.unlink(missing_ok=True)
            index, term = await self._machine.snapshot_to(path)
            return Snapshot(index, term, await asyncio.to_thread(_conf_state_in, path)), path
        except sqlite3.Error as error:
            path.unlink(missing_ok=True)
            raise OSError(f"no image of the state could be made: {error}") from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def release_image(self, image: Path) -> None:
        image.unlink(missing_ok=True)

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        held = await asyncio.to_thread(_check_image, image)
        if held != snapshot:
            raise Refused(f"the image holds entry {held.index}, it was announced as {snapshot.index}")
        # Earlier ones stay: the log may count on one of them already. They go once a later one is installed.
        await asyncio.to_thread(_move_durably, image, self._accepted(snapshot))

    async def install_image(self, snapshot: Snapshot) -> None:
        image = self._accepted(snapshot)
        if not image.exists():
            raise FatalError(
                f"the log begins after entry {snapshot.index} but the state ends at {self.applied_index}, and "
                f"{image} is missing: remove this member from the cluster and add it again"
            )
        await self._machine.install(image)
        for older in self._image_dir.glob("accepted-*.snap"):
            if older < image:  # names sort by index
                older.unlink(missing_ok=True)
        self.on_membership()

    async def recover(self, snapshot: Snapshot) -> None:
        """Before the driver is made: finish an installation that a crash interrupted, and clear what it left."""
        if self.applied_index < snapshot.index:
            await self.install_image(snapshot)
        for leftover in self._image_dir.glob("*.snap"):
            leftover.unlink()

    def _accepted(self, snapshot: Snapshot) -> Path:
        return self._image_dir / f"accepted-{snapshot.index:016x}.snap"


def membership_of(machine: Machine, max_learners: int = DEFAULT_MAX_LEARNERS) -> Membership:
    """The members as a machine holds them."""
    return Membership(machine.bucket(MEMBERS), machine.bucket(MEMBERS_REMOVED), max_learners)


def _conf_state_in(path: Path) -> ConfState:
    """The configuration that an image holds: it belongs to the image's position, not to the present."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT value FROM bucket WHERE name = ? AND key = ?", (META, CONF_STATE_KEY)).fetchone()
    return decode_conf_state(row[0])


def _move_durably(source: Path, target: Path) -> None:
    """Rename, and make the new name survive a power loss (M37)."""
    source.replace(target)
    sqlite.sync_directory(target.parent)


def _check_image(path: Path) -> Snapshot:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise OSError(f"the image is damaged: {problems[0]}")
        index, term = read_applied(path)
        return Snapshot(index, term, _conf_state_in(path))
    except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
        raise OSError(f"this is no image of a state: {error}") from error


def _nothing() -> None:
    return
