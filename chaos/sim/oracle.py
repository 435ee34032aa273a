"""What must hold after every step: the Raft invariants of contract §19, and equal states at equal positions.

A violation is an AssertionError whose text begins with the invariant's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chaos.invariants import Checker
from chaos.sim.trace import Trace
from chaos.sim.truth import Truth
from raft.core.raft import Raft
from raft.core.trace import (
    AppendAckIgnored,
    CampaignRefused,
    CommitAdvanced,
    ConfChangeIgnored,
    ConfigSwitched,
    LogTruncated,
    RoleChanged,
    TraceEvent,
    Voted,
    VoteIgnored,
)
from raft.core.types import Entry, Message, MessageType, Role

if TYPE_CHECKING:
    from chaos.sim.member import Member
    from store.machine import Machine
    from store.mvcc.record import Event


class Oracle:
    """Told of everything that happens in a run; remembers all of it."""

    def __init__(
        self,
        members: Mapping[int, Member],
        start: int,
        trace: Trace,
        truth: Truth,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.checker = Checker(members, async_writes=True, start=start)
        self._members = members
        self._trace = trace
        self._truth = truth
        self._fail = fail

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
        """A process has started: its core came from its disk, and tells what it does."""
        self.checker.forget(raft.id)
        raft._trace_callback = self._core_event

    def _core_event(self, event: TraceEvent) -> None:
        trace = self._trace
        match event:
            case RoleChanged(node, role, term):
                if role is Role.LEADER:
                    self._with_core(node, self.checker.on_leader)
                trace.add(node, "role", f"{role.name.lower().replace('_', '-')} t{term}")
            case Voted(node, term, candidate):
                trace.add(node, "vote", f"for m{candidate} t{term}")
            case CommitAdvanced(node, commit):
                self._with_core(node, self.checker.on_commit)
                trace.add(node, "commit", str(commit))
            case LogTruncated(node, index):
                trace.add(node, "truncate", f"from {index}")
                trace.situation("uncommitted tail of a log replaced")
            case VoteIgnored():
                trace.situation("vote request ignored under a lease")
            case CampaignRefused(reason=reason):
                trace.situation(f"campaign refused: {reason.replace('_', ' ')}")
            case ConfChangeIgnored(reason=reason):
                trace.situation(f"change refused: {reason}")
            case AppendAckIgnored(reason=reason):
                trace.situation(f"acknowledgement of a write ignored: {reason.replace('_', ' ')}")
            case ConfigSwitched(_, conf_state) if conf_state.voters_outgoing:
                trace.situation("joint configuration in force")

    def _with_core(self, number: int, check: Callable[[Raft], None]) -> None:
        node = self._members[number].node
        if node is not None:
            with self._watching():
                check(node.raft)

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
            self._truth.applied(entry)

    def revised(self, revision: int, events: Sequence[Event]) -> None:
        """A member has made a revision."""
        with self._watching():
            self._truth.committed(revision, events)

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
