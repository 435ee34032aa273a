"""A whole simulated cluster, from one seed: its members, its network, its clients, and what goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

from chaos.check import history as h
from chaos.check import words
from chaos.sim import plan
from chaos.sim.clients import Client
from chaos.sim.judge import FOREVER_S, judge, with_expiries
from chaos.sim.liveness import Settlement
from chaos.sim.loop import SimLoop
from chaos.sim.member import START_INDEX, Member, Process
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import Network
from chaos.sim.options import Options
from chaos.sim.oracle import Oracle
from chaos.sim.plan import Fault
from chaos.sim.streams import stream
from chaos.sim.trace import Trace
from chaos.sim.truth import Truth
from chaos.sim.watchers import Watcher
from raft.core.types import ConfState, Message, MessageType
from raft.errors import FatalError, SyncFailed

NANOSECONDS: Final = 1_000_000_000


class World:
    """Construct inside nothing; ``loop.run(world.run())`` plays it."""

    def __init__(self, seed: int, options: Options, faults: Sequence[Fault] | None = None) -> None:
        """``faults`` None: those of the seed."""
        self.seed = seed
        self.options = options
        # The rest of an event loop is not there, so that whoever reaches for it is found out.
        self.loop = SimLoop(stream(seed, "schedule") if options.shuffled else None)  # type: ignore[abstract]
        self.trace = Trace(lambda: self.loop.now)
        self.network = Network(self.loop, seed, options, self.trace)
        self.members: dict[int, Member] = {}
        self.truth = Truth()
        self.oracle = Oracle(self.members, START_INDEX, self.trace, self.truth, self.loop.fail)
        self.network.observe_send = self._sent
        self.nemesis = Nemesis(self)
        self.plan = plan.make(seed, options) if faults is None else faults
        self.config = ConfState(tuple(range(1, options.members + 1)))
        self._config_at = START_INDEX
        self.operations: list[h.Operation] = []
        self.watches: list[h.Watch] = []
        self.failure: BaseException | None = None
        self.compacted_to = 0
        """The newest revision that a client compacted to."""
        self._told_to_take_over = (0, 0)
        self._joint_entered_by = 0
        self._lease_ends: dict[int, int] = {}
        self._client_rng = self.stream("client delay")
        self._clients = count(1)
        self._bursts: list[asyncio.Task[h.Operation]] = []
        self._values = count(1)
        self._leases = count(1)
        self._watches = count(1)
        self._ids = count(options.members + 1)
        self._failed = asyncio.Event()

    def stream(self, *names: object) -> random.Random:
        return stream(self.seed, *names)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something to the world after so many true seconds."""
        self.loop.call_in(seconds, None, do)

    # -- the run ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Faults for a while, then a healed majority that must make progress. Raises AssertionError."""
        for number in range(1, self.options.members + 1):
            self._add(number, first=True)
        for fault in self.plan:
            self.later(fault.at, partial(self.nemesis.do, fault))
        numbers = self._clients
        clients = [Client(self, self.stream("client", n), numbers) for n in range(self.options.clients)]
        watchers = [Watcher(self, self.stream("watcher", n), next(numbers)) for n in range(self.options.watchers)]

        def end_traffic() -> None:
            for client in clients:
                client.finish()

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(client.run()) for client in clients]
            running += [tasks.create_task(watcher.run()) for watcher in watchers]
            await asyncio.sleep(self.options.duration_s)
            self.nemesis.active = False
            last = Client(self, self.stream("last client"), numbers)
            await Settlement(self).run(last, end_traffic)
            for task in running:
                task.cancel()
        for burst in self._bursts:
            burst.cancel()
        await asyncio.gather(*self._bursts, return_exceptions=True)
        self.oracle.checker.check_up_to_date(self.members.values())
        if self.truth.revoked & self._lease_ends.keys():
            self.trace.situation("lease expired")
        operations = with_expiries(self.operations, self._lease_ends, self.truth)
        judge(operations, self.watches, self.truth)

    # -- members ------------------------------------------------------------------------------------------

    def _add(self, number: int, *, first: bool) -> Member:
        rng = self.stream("disk", number)
        drift = self.options.drift
        rate = 1.0 + (self.stream("clock", number).uniform(-drift, drift) if drift else 0.0)
        member = Member(number, rng, rate, range(1, self.options.members + 1) if first else ())
        self.members[number] = member
        self.start(member)
        return member

    def next_id(self) -> int:
        return next(self._ids)

    def add_member(self, number: int) -> None:
        """The operator starts the process of a member that is being added."""
        self._add(number, first=False)

    def start(self, member: Member) -> None:
        if member.process is None and not member.removed:
            member.process = Process(member, self)
            member.process.start()
            self.trace.add(member.id, "start", f"start {member.starts}")

    def serves(self, process: Process) -> None:
        self.network.processes[process.member.id] = process
        driver = process.driver
        if driver.last_index > process.machine.applied_index:
            self.trace.situation("log replayed after a restart")
        self.trace.add(process.member.id, "serve", f"term {driver.term}, log to {driver.last_index}")

    def crash(self, member: Member, *, power_loss: bool, restart: bool = True) -> None:
        """The process ends now, and with ``power_loss`` what was not synced is lost."""
        process = member.process
        if process is None:
            return
        self.network.processes.pop(member.id, None)
        member.process = None
        applied, last = process.kill(), member.disk.last_index()
        member.crash_disks(power_loss=power_loss)
        if member.state_disk.applied_index() < applied:
            self.trace.situation("state taken back by a power loss")
        if member.unsynced and member.disk.last_index() == last:
            self.trace.situation("unsynced log write lost")
        self.oracle.checker.forget(member.id)
        self.trace.add(member.id, "crash", "power loss" if power_loss else "killed")
        if restart:
            self.restart_later(member)

    def restart_later(self, member: Member) -> None:
        seconds = member.rng.expovariate(1 / self.options.restart_s)
        self.later(seconds, lambda: self.start(member) if self.nemesis.active else None)

    def lose(self, member: Member) -> None:
        """The disk is gone for good."""
        self.crash(member, power_loss=True, restart=False)
        member.lost = True
        self.trace.situation("disk wiped")

    def process_failed(self, process: Process, error: BaseException) -> None:
        """A process ended by itself: only for what was done to its disk."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        member = process.member
        if not process.port.alive:
            return
        allowed = (isinstance(error, SyncFailed) and member.log_disk.fail_syncs) or (
            isinstance(error, FatalError) and member.lost
        )
        if not allowed:
            self.fail(AssertionError(f"exit: m{member.id} ended by itself: {type(error).__name__}: {error}"))
            return
        self.trace.add(member.id, "exit", str(error))
        self.trace.situation(f"exit: {type(error).__name__}")
        self.crash(member, power_loss=member.rng.random() < 0.5, restart=not member.lost)

    def fail(self, error: BaseException) -> None:
        """The run has shown a violation: it ends here."""
        self.loop.fail(error)

    def membership_changed(self, process: Process, removed: set[int]) -> None:
        return

    def config_applied(self, member: Member, conf_state: ConfState) -> None:
        """A member has applied a configuration; the newest one is the cluster's."""
        process = member.process
        assert process is not None
        index = process.machine.applied_index
        if index >= member.newest_config_at:
            member.newest_config_at, member.newest_config = index, conf_state
        if index <= self._config_at:
            return
        self._config_at, self.config = index, conf_state
        self.trace.add(member.id, "config", _shown(conf_state))
        leader = self.leader()
        leading = 0 if leader is None else leader.member.id
        if conf_state.voters_outgoing:
            self.trace.situation("joint configuration entered")
            self._joint_entered_by = leading
        elif self._joint_entered_by:
            if leading != self._joint_entered_by:
                self.trace.situation("joint configuration left by another leader")
            self._joint_entered_by = 0
        for other in self.members.values():
            if not other.removed and other.disk.conf_state.voters and other.id not in _all_of(conf_state):
                self._switch_off_later(other)

    def _switch_off_later(self, member: Member) -> None:
        """A removed process is switched off by its operator, later."""

        def off() -> None:
            if member.removed or member.id in _all_of(self.config):
                return
            if not self.config_is_safe():
                self.later(2 * self.options.election_s, off)
            else:
                self.crash(member, power_loss=False, restart=False)
                member.removed = True
                self.trace.situation("removed member switched off")

        self.later(2 * self.options.election_s, off)

    def config_is_safe(self, without: int = 0) -> bool:
        """Whether a majority holds the newest configuration so that nothing takes it back: before that, no
        sensible operator takes away what the one before it needs."""
        config = self.config
        holders = [
            number
            for number in config.voters
            if number != without
            and not self.members[number].lost
            and self.members[number].state_disk.durable_conf_state() == config
        ]
        return not config.voters_outgoing and len(holders) > len(config.voters) // 2

    def leader(self) -> Process | None:
        """A member that leads, of the newest term; None when there is none."""
        leading = [process for process in self.network.processes.values() if process.driver.is_leader]
        return max(leading, key=lambda process: process.driver.term, default=None)

    def leader_changed(self, process: Process, lead: int, leading: bool) -> None:
        if not leading:
            return
        self.trace.add(process.member.id, "leader", f"term {process.driver.term}")
        self.trace.situation("leader elected")
        if self._told_to_take_over == (process.member.id, process.driver.term - 1):
            self.trace.situation("leader elected by a transfer")

    def _sent(self, sender: int, message: Message) -> None:
        self.oracle.sent(sender, message)
        if message.type is MessageType.TIMEOUT_NOW:
            self._told_to_take_over = (message.to, message.term)

    # -- clients ------------------------------------------------------------------------------------------

    def burst(self, number: int, writes: int) -> None:
        """So many clients write to one member at once."""
        for _ in range(writes):
            client = Client(self, self._client_rng, self._clients)
            put = h.Put(b"k%d" % self._client_rng.randrange(self.options.keys), self.unique_value())
            self._bursts.append(self.loop.create_task(client.perform(put, number)))

    def any_member(self, rng: random.Random) -> int:
        return rng.choice([member.id for member in self.members.values() if not member.removed])

    def client_delay(self) -> float:
        return 0.0005 + 0.002 * self._client_rng.random()

    def ticks(self) -> int:
        """The clients' clock in nanoseconds."""
        return int(self.loop.now * NANOSECONDS)

    def unique_value(self) -> bytes:
        return b"v%d" % next(self._values)

    def unique_lease(self) -> int:
        return next(self._leases)

    def watch_number(self) -> int:
        return next(self._watches)

    def record(self, operation: h.Operation) -> None:
        self.operations.append(operation)
        if operation.outcome is h.Outcome.UNKNOWN:
            self.trace.situation("outcome unknown to a client")
        request = operation.request
        if isinstance(request, h.Compact) and operation.outcome is h.Outcome.OK:
            self.compacted_to = max(self.compacted_to, request.revision)
        if isinstance(request, h.Grant) and request.ttl_s < FOREVER_S:
            shortest_s = request.ttl_s / (1 + self.options.drift)
            self._lease_ends[request.lease] = operation.call + int(shortest_s * NANOSECONDS)
        asked = f"client {operation.client} at {operation.endpoint}: {words.request(operation.request)}"
        self.trace.add(0, "client", f"{asked} {operation.outcome}")

    def record_watch(self, watch: h.Watch) -> None:
        self.watches.append(watch)


def _all_of(conf_state: ConfState) -> set[int]:
    return {
        *conf_state.voters,
        *conf_state.learners,
        *conf_state.voters_outgoing,
        *conf_state.learners_next,
    }


def _shown(conf_state: ConfState) -> str:
    text = f"voters {list(conf_state.voters)}"
    if conf_state.learners:
        text += f" learners {list(conf_state.learners)}"
    if conf_state.voters_outgoing:
        text += f" leaving {list(conf_state.voters_outgoing)}"
    return text
