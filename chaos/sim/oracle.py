"""What must hold after every step: the Raft invariants of contract §19, and equal states at equal positions.

A violation is an AssertionError whose text begins with the invariant's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chaos.invariants import Checker
from chaos.sim.trace import Trace
from raft.core.raft import Raft
from raft.core.types import Entry, Message, MessageType

if TYPE_CHECKING:
    from chaos.sim.member import Member
    from store.machine import Machine


class Oracle:
    """Told of everything that happens in a run; remembers all of it."""

    def __init__(
        self,
        members: Mapping[int, Member],
        start: int,
        trace: Trace,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.checker = Checker(members, async_writes=True, start=start)
        self._members = members
        self._trace = trace
        self._fail = fail
        self._terms: dict[int, int] = {}
        self._revisions: dict[int, int] = {}
        self._leading: dict[int, int] = {}

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """A violation ends the run, whatever the code that was observed makes of the exception."""
        try:
            yield
        except AssertionError as violation:
            self._fail(violation)
            raise

    # -- the core -----------------------------------------------------------------------------------------

    def core_started(self, raft: Raft) -> None:
        """A process has started: its core came from its disk."""
        self.checker.forget(raft.id)

    def stepped(self, member: Member) -> None:
        with self._watching():
            self.checker.after_step(member)

    def sent(self, sender: int, message: Message) -> None:
        with self._watching():
            self.checker.on_send(self._members[sender], message)
        if message.type is MessageType.TIMEOUT_NOW:
            self._trace.situation("leadership transfer under way")

    # -- the state machine --------------------------------------------------------------------------------

    def applied(self, member: Member, machine: Machine, entry: Entry) -> None:
        """I5: the same entry at the same position, and the same state after it."""
        from chaos.sim.member import digest

        with self._watching():
            self.checker.on_apply(entry, digest(machine), member.disk.conf_state)

    def loaded(self, member: Member, machine: Machine) -> None:
        """A state read back from a disk is that of its position."""
        self._at(member, machine)

    def installed(self, member: Member, machine: Machine) -> None:
        """A snapshot is the state of its position."""
        self._at(member, machine)
        self._trace.add(member.id, "snapshot", f"installed at entry {machine.applied_index}")
        self._trace.situation("snapshot installed")

    def _at(self, member: Member, machine: Machine) -> None:
        from chaos.sim.member import digest

        if machine.applied_index:
            with self._watching():
                self.checker.on_state(machine.applied_index, digest(machine), member.disk.conf_state)
