"""A cluster in memory under faults: messages lost, doubled, delayed and reordered, partitions, crashes that keep
only what was written, snapshots, membership changes. One seed is one run.

Nothing here checks anything: that is ``invariants.Checker``, which is told of every step.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from chaos.invariants import Checker
from raft.core import (
    APPEND_THREAD,
    APPLY_THREAD,
    CallerError,
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Config,
    ConfState,
    Entry,
    EntryType,
    FaultError,
    HardState,
    MemoryStorage,
    Message,
    MessageType,
    RawNode,
    Ready,
    Snapshot,
    decode_conf_change,
)
from raft.core.trace import ConfigSwitched, RoleChanged, TraceEvent

FIRST_INDEX = 1
"""Every cluster starts from a snapshot here, the same on each first member (contract §18)."""


@dataclass(frozen=True)
class Faults:
    """Shares of 1 for what happens to a message, and weights for what happens next."""

    drop: float = 0.05
    duplicate: float = 0.05
    tick: int = 50
    deliver: int = 80
    ready: int = 80
    threads: int = 60
    propose: int = 8
    conf_change: int = 3
    read: int = 3
    transfer: int = 1
    forget_leader: int = 1
    crash: int = 3
    restart: int = 6
    partition: int = 3
    heal: int = 3
    compact: int = 4


@dataclass(frozen=True)
class Options:
    """What a cluster is made of."""

    members: int = 3
    spares: int = 2
    async_writes: bool = False
    pre_vote: bool = True
    check_quorum: bool = True
    step_down_on_removal: bool = False
    commit_notices: bool = False
    max_size_per_msg: int = 400
    max_inflight_msgs: int = 4
    faults: Faults = field(default_factory=Faults)


class Disk(MemoryStorage):
    """Survives a crash: the log, and the state machine with the configuration at its position."""

    def __init__(self, first: Snapshot | None) -> None:
        super().__init__()
        self.applied = 0
        self.digest = b""
        self.conf_state = ConfState()
        if first is not None:
            self.install(first)

    def hard_state(self) -> HardState:
        return self._hard_state

    def initial_state(self) -> tuple[HardState, ConfState]:
        """What is applied is committed, also where the commit index was not written in time."""
        commit = max(self._hard_state.commit, self.applied)
        return self._hard_state._replace(commit=commit), self.conf_state

    def snapshot(self) -> Snapshot:
        """The state machine as it is: an older image could name a configuration without the receiver."""
        return Snapshot(self.applied, self.term(self.applied), self.conf_state, self.digest)

    def install(self, snapshot: Snapshot) -> None:
        """A snapshot replaces log and state machine together."""
        self.apply_snapshot(snapshot)
        self.applied, self.digest, self.conf_state = snapshot.index, snapshot.data, snapshot.conf_state

    def apply(self, entry: Entry) -> None:
        if entry.index != self.applied + 1:
            raise AssertionError(f"applied {entry.index} after {self.applied}")
        self.applied = entry.index
        self.digest = hashlib.blake2b(self.digest + repr(entry).encode(), digest_size=8).digest()

    def write(self, hard_state: HardState | None, entries: tuple[Entry, ...], snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.install(snapshot)
        self.append(entries)
        if hard_state is not None:
            self.set_hard_state(hard_state)


class Member:
    """A process that may be down, its disk, and the work its storage threads have not done."""

    def __init__(self, node_id: int, first: Snapshot | None) -> None:
        self.id = node_id
        self.node: RawNode | None = None
        self.disk = Disk(first)
        self.appends: deque[Message] = deque()
        self.applies: deque[Message] = deque()


class Simulation:
    """``step`` does one thing chosen by the seed; ``settle`` ends the faults and demands progress."""

    def __init__(self, seed: int, options: Options) -> None:
        self.random = random.Random(seed)
        self.options = options
        ids = range(1, options.members + options.spares + 1)
        state = ConfState(tuple(ids[: options.members]))
        first = Snapshot(FIRST_INDEX, 1, state, b"first")
        self.members = {node: Member(node, first if node in state.voters else None) for node in ids}
        self.checker = Checker(self.members, async_writes=options.async_writes, start=FIRST_INDEX)
        self.wire: list[Message] = []
        self.blocked: set[tuple[int, int]] = set()
        self.proposals = 0
        self.reads: dict[bytes, int] = {}
        self.events: Counter[str] = Counter()
        for member in self.members.values():
            self.start(member)
        faults = options.faults
        self._actions: dict[Callable[[], None], int] = {
            self.tick_one: faults.tick,
            self.deliver_one: faults.deliver,
            self.handle_one: faults.ready,
            self.run_thread: faults.threads,
            self.propose: faults.propose,
            self.propose_conf_change: faults.conf_change,
            self.read: faults.read,
            self.transfer: faults.transfer,
            self.forget_leader: faults.forget_leader,
            self.crash: faults.crash,
            self.restart: faults.restart,
            self.partition: faults.partition,
            self.heal: faults.heal,
            self.compact: faults.compact,
        }

    def run(self, steps: int) -> None:
        """Chance, for a number of steps."""
        chosen = self.random.choices(list(self._actions), list(self._actions.values()), k=steps)
        for action in chosen:
            action()
        self.checker.check_up_to_date(list(self.members.values()))

    # --- processes

    def start(self, member: Member) -> None:
        options = self.options
        member.node = RawNode(
            Config(
                id=member.id,
                storage=member.disk,
                rng=random.Random(self.random.getrandbits(32)),
                election_tick=5,
                heartbeat_tick=1,
                applied=member.disk.applied,
                async_storage_writes=options.async_writes,
                pre_vote=options.pre_vote,
                check_quorum=options.check_quorum,
                step_down_on_removal=options.step_down_on_removal,
                commit_notices=options.commit_notices,
                max_size_per_msg=options.max_size_per_msg,
                max_inflight_msgs=options.max_inflight_msgs,
                trace=self._traced,
            )
        )
        self.checker.after_step(member)

    def _traced(self, event: TraceEvent) -> None:
        self.events[type(event).__name__] += 1
        if isinstance(event, ConfigSwitched) and event.conf_state.voters_outgoing:
            self.events["joint"] += 1
        if isinstance(event, RoleChanged):
            self.events[event.role.name] += 1

    def stop(self, member: Member) -> None:
        """What was not written is lost."""
        member.node = None
        member.appends.clear()
        member.applies.clear()
        self.checker.forget(member.id)

    def crash(self) -> None:
        running = self._running()
        if len(running) > 1:
            self.stop(self.random.choice(running))

    def restart(self) -> None:
        stopped = [member for member in self.members.values() if member.node is None]
        if stopped:
            self.start(self.random.choice(stopped))

    def _running(self) -> list[Member]:
        return [member for member in self.members.values() if member.node is not None]

    def _any_node(self) -> tuple[Member, RawNode]:
        member = self.random.choice(self._running())
        assert member.node is not None
        return member, member.node

    def _leaders(self) -> list[Member]:
        return [member for member in self._running() if member.node is not None and member.node.is_leader]

    # --- the machinery of a node

    def tick_one(self) -> None:
        member, node = self._any_node()
        node.tick()
        self.checker.after_step(member)

    def handle_one(self) -> None:
        busy = [member for member in self._running() if member.node and member.node.has_ready()]
        if busy:
            self.handle(self.random.choice(busy))

    def handle(self, member: Member) -> None:
        """Take a Ready and do what a driver does with it."""
        node = member.node
        if node is None or not node.has_ready():
            return
        ready = node.ready()
        for state in ready.read_states:
            started_at = self.reads[state.context]  # may come twice, when messages are doubled
            assert state.index >= started_at, f"stale read: {state.index} after {started_at} was applied"
        if self.options.async_writes:
            self._route(member, ready)
        else:
            member.disk.write(ready.hard_state, ready.entries, ready.snapshot)
            if ready.snapshot is not None:
                self._installed(ready.snapshot)
            self._apply(member, ready.committed_entries)
            self._send(member, ready.messages)
            node.advance()
        self.checker.after_step(member)

    def _route(self, member: Member, ready: Ready) -> None:
        for message in ready.messages:
            if message.to == APPEND_THREAD:
                member.appends.append(message)
            elif message.to == APPLY_THREAD:
                member.applies.append(message)
            else:
                self._send(member, (message,))

    def run_thread(self) -> None:
        busy = [member for member in self._running() if member.appends or member.applies]
        if busy:
            member = self.random.choice(busy)
            if not member.applies or self.random.random() < 0.7:
                self.append_one(member)
            else:
                self.apply_one(member)

    def append_one(self, member: Member) -> bool:
        if not member.appends:
            return False
        work = member.appends.popleft()
        hard_state = HardState(work.term, work.vote, work.commit) if work.term else None
        member.disk.write(hard_state, work.entries, work.snapshot)
        if work.snapshot is not None:
            self._installed(work.snapshot)
        self._respond(member, work)
        return True

    def apply_one(self, member: Member) -> bool:
        if not member.applies:
            return False
        work = member.applies.popleft()
        self._apply(member, work.entries)
        self._respond(member, work)
        return True

    def _respond(self, member: Member, work: Message) -> None:
        for response in work.responses:
            if response.to == member.id:
                self.checker.on_send(member, response)
                self.step(member, response)
            else:
                self._send(member, (response,))

    def _installed(self, snapshot: Snapshot) -> None:
        self.checker.on_state(snapshot.index, snapshot.data, snapshot.conf_state)

    def _apply(self, member: Member, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.index <= member.disk.applied:
                continue  # a snapshot was installed while this work was waiting, and covers it
            member.disk.apply(entry)
            if entry.type != EntryType.NORMAL and member.node is not None:
                member.disk.conf_state = member.node.apply_conf_change(decode_conf_change(entry))
            self.checker.on_apply(entry, member.disk.digest, member.disk.conf_state)

    # --- network

    def _send(self, sender: Member, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.checker.on_send(sender, message)
            chance = self.random.random()
            faults = self.options.faults
            if chance < faults.drop or (message.from_, message.to) in self.blocked:
                self._report_lost(sender, message)
                continue
            self.wire.append(message)
            if chance > 1 - faults.duplicate:
                self.wire.append(message)

    def _report_lost(self, sender: Member, message: Message) -> None:
        """A transport reports what it could not send; of a snapshot always."""
        if sender.node is None:
            return
        if message.type == MessageType.SNAP:
            sender.node.report_snapshot(message.to, ok=False)
        if self.random.random() < 0.5:
            sender.node.report_unreachable(message.to)

    def deliver_one(self) -> None:
        for _ in range(min(3, len(self.wire))):
            at = self.random.randrange(len(self.wire)) if self.random.random() < 0.3 else 0
            self.deliver(self.wire.pop(at))

    def deliver(self, message: Message) -> None:
        target, sender = self.members[message.to], self.members[message.from_]
        arrives = target.node is not None and (message.from_, message.to) not in self.blocked
        if arrives:
            self.step(target, message)
        if message.type == MessageType.SNAP and sender.node is not None:
            self.events["snapshot arrived" if arrives else "snapshot lost"] += 1
            sender.node.report_snapshot(message.to, ok=arrives)

    def step(self, member: Member, message: Message) -> None:
        if member.node is not None:
            with suppress(CallerError, FaultError):  # a dropped proposal, a peer that was removed
                member.node.step(message)
            self.checker.after_step(member)

    def partition(self) -> None:
        """Cut the cluster in two, or one direction between two nodes."""
        ids = list(self.members)
        if self.random.random() < 0.5:
            group = set(self.random.sample(ids, self.random.randrange(1, len(ids))))
            self.blocked |= {(a, b) for a in ids for b in ids if (a in group) != (b in group)}
        else:
            one, other = self.random.sample(ids, 2)
            self.blocked.add((one, other))

    def heal(self) -> None:
        self.blocked.clear()

    # --- what clients and operators do

    def propose(self) -> None:
        member, node = self._any_node()
        self.proposals += 1
        batch = [b"%d:%d" % (self.proposals, part) for part in range(self.random.randrange(1, 4))]
        try:
            node.propose_batch(batch)
        except CallerError:
            return
        self.checker.after_step(member)

    def read(self) -> None:
        member, node = self._any_node()
        self.proposals += 1
        context = b"read %d" % self.proposals
        self.reads[context] = self.checker.max_applied
        node.read_index(context)
        self.checker.after_step(member)

    def transfer(self) -> None:
        leaders = self._leaders()
        if leaders and leaders[0].node is not None:
            leaders[0].node.transfer_leader(self.random.choice(list(self.members)))
            self.checker.after_step(leaders[0])

    def forget_leader(self) -> None:
        member, node = self._any_node()
        node.forget_leader()
        self.checker.after_step(member)

    def propose_conf_change(self) -> None:
        """One change, or several through a joint configuration; at least two voters stay."""
        for member in self._leaders()[:1]:
            node = member.node
            assert node is not None
            config = node.status().config
            change = self._random_change(config)
            if change is None:
                return
            try:
                node.propose_conf_change(change)
            except CallerError:
                return
            self.checker.after_step(member)

    def _random_change(self, config: ConfState) -> ConfChangeV2 | None:
        if config.voters_outgoing:
            return ConfChangeV2()
        count = self.random.choice((1, 1, 2, 3))
        transition = self.random.choice(list(ConfChangeTransition))
        kinds = (ConfChangeType.ADD_VOTER, ConfChangeType.REMOVE, ConfChangeType.ADD_LEARNER)
        nodes = self.random.sample(list(self.members), count)
        changes = tuple(ConfChange(self.random.choice(kinds), node) for node in nodes)
        added = {change.node_id for change in changes if change.type == ConfChangeType.ADD_VOTER}
        gone = {change.node_id for change in changes if change.type != ConfChangeType.ADD_VOTER}
        if len((set(config.voters) | added) - gone) < 2:
            return None
        return ConfChangeV2(changes, transition)

    def compact(self) -> None:
        """Forget the log up to a position the state machine has passed."""
        member, _ = self._any_node()
        position = member.disk.applied - self.random.randrange(4)
        if position >= member.disk.first_index():
            member.disk.compact(position)
            self.checker.after_step(member)

    # --- liveness

    def settle(self, max_rounds: int = 400) -> None:
        """No more faults: there must be a leader, everybody must catch up, joint configurations must end."""
        self.heal()
        self.options = Options(**{**vars(self.options), "faults": Faults(drop=0, duplicate=0)})
        for member in self.members.values():
            if member.node is None:
                self.start(member)
        for round_ in range(max_rounds):
            self._quiet_round()
            if round_ % 10 == 5:
                self._propose_at_leader()
            if round_ > 20 and self._is_settled():
                return
        states = [member.node and member.node.status() for member in self.members.values()]
        raise AssertionError(f"no progress in {max_rounds} rounds: {states}")

    def _quiet_round(self) -> None:
        for member in self.members.values():
            if member.node is not None:
                member.node.tick()
        for _ in range(3):
            for member in self.members.values():
                self.handle(member)
                while self.append_one(member) or self.apply_one(member):
                    pass
            waiting, self.wire = self.wire, []
            for message in waiting:
                self.deliver(message)
        self._stop_outsiders()

    def _stop_outsiders(self) -> None:
        """A removed process is switched off by its operator sooner or later."""
        for leader in self._leaders():
            if leader.node is None:
                continue
            status = leader.node.status()
            if status.commit < self.checker.max_committed or status.config.voters_outgoing:
                continue
            inside = {*status.config.voters, *status.config.learners}
            for member in self._running():
                if member.id not in inside and status.applied == status.last_index:
                    self.stop(member)

    def _propose_at_leader(self) -> None:
        for leader in self._leaders():
            if leader.node is not None:
                config = leader.node.status().config
                try:
                    if config.voters_outgoing and not config.auto_leave:
                        leader.node.propose_conf_change(ConfChangeV2())
                    leader.node.propose(b"settle")
                except CallerError:
                    continue

    def _is_settled(self) -> bool:
        for leader in self._leaders():
            node = leader.node
            if node is None or node.status().config.voters_outgoing:
                continue
            status = node.status()
            inside = [*status.config.voters, *status.config.learners]
            if status.applied == status.last_index >= self.checker.max_committed and all(
                self.members[one].disk.applied == status.applied for one in inside
            ):
                return True
        return False
