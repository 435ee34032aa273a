"""The state machine as Raft's application: entries in, results out, configuration kept with the data."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

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
    encode_conf_state,
)
from store.errors import Code, EtcdError
from store.etcdpb import internal_pb2
from store.images import CONF_STATE_KEY, ImageFolder, Images
from store.machine import META, Machine
from store.observations import Observations


@mypyc_attr(allow_interpreted_subclasses=True)
class MachineApplication:
    """A raft.application.Application over a Machine."""

    def __init__(
        self,
        machine: Machine,
        max_learners: int,
        images: Path | Images,
        observations: Observations | None = None,
    ) -> None:
        """``images`` is the folder they are kept in, or whatever else keeps them."""
        self._machine = machine
        self._images: Images = ImageFolder(images) if isinstance(images, Path) else images
        self._observations = observations or Observations()
        self._is_learner: bool | None = None
        self._max_learners = max_learners
        self.on_membership: Callable[[], None] = _nothing
        """Called when members may have changed; must not block."""

    @property
    def membership(self) -> Membership:
        return membership_of(self._machine, self._max_learners)

    def is_learner(self, member_id: int) -> bool:
        """Whether this member, ``member_id``, is a learner. Asked for every call that a client makes, so it is
        looked up only where members may have changed."""
        if self._is_learner is None:
            member = self.membership.get(member_id)
            self._is_learner = member is not None and member.is_learner
        return self._is_learner

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
        self._is_learner = None
        self.on_membership()
        return self.membership.members()

    @property
    def has_room(self) -> bool:
        return self._machine.has_room

    async def room(self) -> None:
        await self._machine.backpressure()

    async def make_durable(self) -> None:
        await self._machine.flush()
        await self._machine.checkpoint()

    async def make_image(self) -> tuple[Snapshot, Path]:
        image = self._images.new()
        try:
            index, term = await self._machine.snapshot_to(image)
            return Snapshot(index, term, await self._images.conf_state(image)), image
        except sqlite3.Error as error:
            self._images.discard(image)
            raise OSError(f"no image of the state could be made: {error}") from error
        except BaseException:
            self._images.discard(image)
            raise

    def release_image(self, image: Path) -> None:
        self._images.discard(image)

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        held = await self._images.check(image)
        if held != snapshot:
            raise Refused(f"the image holds entry {held.index}, it was announced as {snapshot.index}")
        # Earlier ones stay: the log may count on one of them already. They go once a later one is installed.
        await self._images.keep(image, snapshot)

    async def install_image(self, snapshot: Snapshot) -> None:
        image = self._images.accepted(snapshot)
        if image is None:
            raise FatalError(
                f"the log begins after entry {snapshot.index} but the state ends at {self.applied_index}, and "
                "the image in between is missing: remove this member from the cluster and add it again"
            )
        await self._machine.install(image)
        self._images.forget_before(snapshot)
        self._is_learner = None
        self.on_membership()

    async def recover(self, snapshot: Snapshot) -> None:
        """Before the driver is made: finish an installation that a crash interrupted, and clear what it left."""
        if self.applied_index < snapshot.index:
            await self.install_image(snapshot)
        self._images.clear()


def membership_of(machine: Machine, max_learners: int = DEFAULT_MAX_LEARNERS) -> Membership:
    """The members as a machine holds them."""
    return Membership(machine.bucket(MEMBERS), machine.bucket(MEMBERS_REMOVED), max_learners)


def _nothing() -> None:
    return
