"""The process around the core: disk, network, clock and state machine, in one place that decides the order.

Everything that arrives in one turn of the event loop (messages, proposals, reads, disk and apply
acknowledgements, a tick) goes into the core together and comes out as one Ready. The slow work is done beside
the turns: one write of the log after the other, each of which only then releases the messages that depend on
it, and a task that feeds the state machine. So a slow disk delays acknowledgements, never heartbeats. What needs
neither the disk nor long, a commit index to remember or a few entries to apply, is done within the turn unless
something before it is still under way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from raft.application import Application, slice_end
from raft.config import DriverConfig
from raft.core import (
    Config,
    MalformedMessage,
    ProposalDropped,
    RawNode,
    StepLocalMessage,
    StepPeerNotFound,
)
from raft.core.confchange import as_v2
from raft.core.confchange import decode as decode_conf_change
from raft.core.types import (
    APPEND_THREAD,
    APPLY_THREAD,
    NO_NODE,
    NOTICE,
    ConfChangeV2,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Ready,
    Role,
    Snapshot,
)
from raft.errors import (
    ConfChangeRefused,
    FatalError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    RaftError,
    Stopped,
)
from raft.log import DurableLog, LoadedLog, LogWrite, held_until_durable
from raft.logwriter import LogWriter
from raft.outbox import Outbox
from raft.proposals import ProposalQueue
from raft.reads import ReadRounds
from raft.stable import StableLog
from raft.transport import Transport
from raft.waiters import ID_BYTES, RequestIds, Settle, Waiters, settle

log = logging.getLogger(__name__)

INBOX_MESSAGES_MAX: Final = 16384
MALFORMED_LOGGED_MAX: Final = 20
"""Lines a process writes about messages that make no sense; a peer that sends them sends many."""


class RaftDriver:
    """One member's Raft. Construct with a loaded log, ``run`` as a task, and talk to it from the same loop."""

    def __init__(
        self,
        config: DriverConfig,
        durable_log: DurableLog,
        loaded: LoadedLog,
        application: Application,
        transport: Transport,
        rng: random.Random,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        self._loop = loop
        self._log = durable_log
        self._application = application
        self._transport = transport
        self._conf_state = application.conf_state
        self._storage = StableLog(self._image_position)
        self._node = self._make_node(loaded, rng)
        self._ids = RequestIds(config.member_id)
        self._waiters = Waiters(config.request_timeout_s, loop.time)
        self._reads = ReadRounds(self._node.read_index, loop.time, config.request_timeout_s)
        self._inbox: list[Message] = []
        self._unreachable: set[int] = set()
        self._snapshot_reports: list[tuple[int, bool]] = []
        self._proposals = ProposalQueue(self._waiters)
        self._conf_proposals: deque[tuple[int, ConfChangeV2]] = deque()
        self._writer = LogWriter(
            durable_log, loaded.hard_state, loop.time, self._stored, self._install, self._turn_now, self._fail
        )
        self._handed_over_at = float("-inf")
        self._apply_queue: deque[Message] = deque()
        self._apply_wake = asyncio.Event()
        self._apply_idle = asyncio.Event()
        self._apply_idle.set()
        self._sending_images = 0
        self._outbox = Outbox(transport)
        self._scheduled = False
        self._stopped = False
        self._failure: asyncio.Future[None] = loop.create_future()
        self._next_tick = loop.time() + config.tick_s
        self._tick_handle: asyncio.TimerHandle | None = None
        self._leader_callbacks: list[Callable[[int, bool], None]] = []
        self._last_lead = NO_NODE
        self._last_known_lead = NO_NODE
        self._last_leading = False
        self._log_snapshot_index = loaded.snapshot.index
        self._compacting = False
        self.leader_since = 0.0
        self.late_ticks = 0
        self.late_tick_s_max = 0.0
        self.dropped_messages = 0
        self._malformed_logged = 0
        self.proposals_total = 0
        self.turns = 0
        self._applied_in_turn = 0

    def _make_node(self, loaded: LoadedLog, rng: random.Random) -> RawNode:
        applied = self._application.applied_index
        last = loaded.entries[-1].index if loaded.entries else loaded.snapshot.index
        if not loaded.snapshot.index <= applied <= last:
            raise FatalError(
                f"the state holds entries up to {applied} but the log has {loaded.snapshot.index} to {last}: "
                "one of the two files was replaced or lost; remove this member and add it again"
            )
        # The stored commit may lag what was applied (it is written with the next append): what was applied
        # was committed, and the log is durable up to there.
        hard_state = loaded.hard_state._replace(commit=max(loaded.hard_state.commit, applied))
        if loaded.snapshot.index:
            self._storage.apply_snapshot(loaded.snapshot)
        self._storage.set_hard_state(hard_state)
        self._storage.append(tuple(loaded.entries))
        config = self.config
        return RawNode(
            Config(
                id=config.member_id,
                storage=self._storage,
                election_tick=config.election_ticks,
                heartbeat_tick=1,
                applied=applied,
                async_storage_writes=True,
                max_size_per_msg=config.max_size_per_msg_bytes,
                max_committed_size_per_ready=4 * config.max_size_per_msg_bytes,
                max_uncommitted_entries_size=config.max_uncommitted_bytes,
                max_inflight_msgs=config.max_inflight_msgs,
                check_quorum=True,
                pre_vote=config.pre_vote,
                step_down_on_removal=True,
                commit_notices=True,
                rng=rng,
            )
        )

    # what the member asks

    @property
    def hard_state(self) -> HardState:
        """As it is stored."""
        return self._writer.hard_state

    @property
    def leader_id(self) -> int:
        return self._node.lead

    @property
    def is_leader(self) -> bool:
        return self._node.is_leader

    @property
    def term(self) -> int:
        return self._node.term

    @property
    def commit_index(self) -> int:
        return self._node.commit

    @property
    def last_index(self) -> int:
        return self._node.last_index

    def status(self) -> Any:
        """The core's Status: role, configuration, and on the leader the progress of every peer."""
        return self._node.status()

    def on_leader_change(self, callback: Callable[[int, bool], None]) -> None:
        self._leader_callbacks.append(callback)

    def forget_leader_callback(self, callback: Callable[[int, bool], None]) -> None:
        self._leader_callbacks.remove(callback)

    async def propose(self, payload: bytes, *, as_leader: bool = False) -> Any:
        """Replicate ``payload`` and return what applying it here returned.

        Raises Overloaded, NoLeader or Refused when nothing was proposed, OutcomeUnknown when it may still be
        applied, and whatever the application refused it with. See ``submit``.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        request_id = self.submit(payload, partial(settle, future), as_leader=as_leader)
        try:
            return await future
        finally:
            self.withdraw(request_id)

    def submit(self, payload: bytes, settle: Settle, *, as_leader: bool = False) -> int:
        """Replicate ``payload``; ``settle`` gets the outcome within the turn that applies it, and must not raise.

        With ``as_leader`` only in the term that this member leads now: it is never forwarded, and raises NotLeader
        when the leadership is lost before. For what a leader does of its own accord (M21): a leader that was
        paused or whose disk hung must not make its successor do what it decided long ago.

        Returns the id that it waits under. Raises Stopped, Overloaded or NotLeader: then nothing is proposed.
        """
        if self._stopped:
            raise Stopped("this member is shutting down")
        if self._node.commit - self._application.applied_index > self.config.max_unapplied_entries:
            raise Overloaded("too many committed entries wait to be applied")
        if self._proposals.is_full:
            raise Overloaded("too many proposals wait for a leader")
        if as_leader and not self._node.is_leader:
            raise NotLeader("only the leader proposes this")
        request_id = self._ids.next()
        self._waiters.register(request_id, settle)
        term = self._node.term if as_leader else 0
        self._proposals.add(request_id, payload, term)
        self.proposals_total += 1
        self._schedule()
        return request_id

    def withdraw(self, request_id: int) -> None:
        """Whoever submitted it does not wait any more: it is not proposed unless it has been already."""
        self._waiters.forget(request_id)

    async def propose_conf_change(self, change: ConfChangeV2) -> Any:
        """Change the configuration; only the leader can. ``change.context`` is the application's payload.

        Raises NotLeader, ConfChangeRefused when another change is pending or the application refuses it.
        """
        if self._stopped:
            raise Stopped("this member is shutting down")
        if not self._node.is_leader:
            raise NotLeader("only the leader changes the configuration")
        request_id = self._ids.next()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters.register(request_id, partial(settle, future))
        context = request_id.to_bytes(ID_BYTES, "big") + change.context
        self._conf_proposals.append((request_id, change._replace(context=context)))
        self._schedule()
        try:
            return await future
        finally:
            self._waiters.forget(request_id)

    async def read_barrier(self) -> None:
        """Return once everything committed anywhere when this was called is applied here (ReadIndex).

        Raises LeaderChanged (ask again), OutcomeUnknown when no leader confirmed in time, Stopped.
        """
        if self._stopped:
            raise Stopped("this member is shutting down")
        future = self._reads.add()
        self._schedule()
        await future

    def transfer_leader(self, target: int) -> None:
        """Ask the leader to hand over to ``target``; watch on_leader_change for the outcome."""
        self._node.transfer_leader(target)
        self._schedule()

    def campaign(self) -> None:
        """Start an election now instead of waiting for the timeout."""
        self._node.campaign()
        self._schedule()

    def advance_ticks(self, ticks: int) -> None:
        """Let time pass quickly after a start, so that an election need not wait a whole timeout (etcd)."""
        for _ in range(ticks):
            self._node.tick()
        self._schedule()

    def statistics(self) -> Mapping[str, float]:
        return {
            "inbox": len(self._inbox),
            "proposals_queued": len(self._proposals),
            "waiters": len(self._waiters),
            "reads_waiting": len(self._reads),
            "append_queue": len(self._writer),
            "apply_queue": len(self._apply_queue),
            "late_ticks": self.late_ticks,
            "late_tick_seconds_max": self.late_tick_s_max,
            "dropped_messages": self.dropped_messages,
            "proposals_total": self.proposals_total,
            "turns": self.turns,
            **{f"log_{name}": value for name, value in self._log.statistics().items()},
        }

    # what the transport delivers (raft.transport.PeerHandler)

    def receive(self, messages: Sequence[Message]) -> None:
        # A snapshot counts only with its image, which comes by receive_snapshot.
        messages = [message for message in messages if message.type is not MessageType.SNAP]
        room = INBOX_MESSAGES_MAX - len(self._inbox)
        if len(messages) > room:
            self.dropped_messages += len(messages) - max(room, 0)
            messages = messages[: max(room, 0)]
        self._inbox += messages
        self._schedule()

    def peer_unreachable(self, peer: int) -> None:
        self._unreachable.add(peer)
        self._schedule()

    def snapshot_sent(self, peer: int, ok: bool) -> None:
        self._snapshot_reports.append((peer, ok))
        self._schedule()

    async def receive_snapshot(self, message: Message, image: Path) -> None:
        assert message.snapshot is not None
        await self._application.accept_image(image, message.snapshot._replace(data=b""))
        self._inbox.append(message)
        self._schedule()

    # the turn

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn_now(self) -> None:
        """At the end of a log write: a turn that is due anyway will see it, otherwise it gets its own at once."""
        if not self._scheduled:
            self._turn()

    def _turn(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        self.turns += 1
        try:
            self._feed()
            while self._node.has_ready():
                self._dispatch(self._node.ready())
                if self._inbox:  # acknowledgements of what was done at once
                    self._step_inbox()
            if self._outbox.holds_notices:
                self._loop.call_soon(self._send_notices)  # behind the answers, which leave in the next turn
        except Exception as error:
            self._fail(error)

    def _step_inbox(self) -> None:
        node = self._node
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            if message.type is MessageType.PROP and node.is_leader and not any(e.type for e in message.entries):
                self.dropped_messages += self._proposals.add_forwarded(message.entries)
                continue
            try:
                node.step(message)
            except (ProposalDropped, StepPeerNotFound, StepLocalMessage, MalformedMessage) as dropped:
                self.dropped_messages += 1
                if isinstance(dropped, MalformedMessage) and self._malformed_logged < MALFORMED_LOGGED_MAX:
                    self._malformed_logged += 1
                    log.warning("message of member %x dropped: %s", message.from_, dropped)

    def _feed(self) -> None:
        node = self._node
        self._step_inbox()
        if self._unreachable:
            for peer in self._unreachable:
                node.report_unreachable(peer)
            self._unreachable.clear()
        for peer, ok in self._snapshot_reports:
            node.report_snapshot(peer, ok)
        self._snapshot_reports.clear()
        if self._conf_proposals:
            self._propose_conf_changes()
        if self._proposals and self._can_propose():
            self._proposals.hand_to(node)
        self._reads.begin()

    def _can_propose(self) -> bool:
        """A leader waits for its log write to end: what arrives during one sync becomes one batch, one frame for
        each peer and one sync (group commit). A follower waits while its leader is out of reach: a proposal sent
        there would be lost, and its outcome unknown, where waiting costs an election."""
        node = self._node
        if node.is_leader:
            return self._writer.since is None
        return node.lead != NO_NODE and self._transport.active_since(node.lead) is not None

    def _propose_conf_changes(self) -> None:
        while self._conf_proposals:
            request_id, change = self._conf_proposals.popleft()
            try:
                self._node.propose_conf_change(change)  # refused for another one pending: told by the Ready
            except ProposalDropped as dropped:
                self._waiters.resolve(request_id, ConfChangeRefused(str(dropped)))

    def _dispatch(self, ready: Ready) -> None:
        if ready.soft_state is not None:
            self._leader_may_have_changed()
        for refused in ready.refused_conf_changes:
            self._waiters.resolve(_request_id(refused.context), ConfChangeRefused("another change is pending"))
        for state in ready.read_states:
            self._reads.confirmed(state.context, state.index, self._application.applied_index)
        outgoing: list[Message] = []
        for message in held_until_durable(ready.messages):
            if message.to == APPEND_THREAD:
                if not self._store_now(message, outgoing):
                    self._writer.add(message)
            elif message.to == APPLY_THREAD:
                if outgoing:
                    self._outbox.send(outgoing)  # nobody else's time: applying comes last
                    outgoing = []
                if not self._apply_now(message):
                    self._apply_queue.append(message)
                    self._apply_idle.clear()
                    self._apply_wake.set()
            elif message.type is MessageType.SNAP:
                self._start_snapshot(message)
            elif message.context == NOTICE and self._waiters:
                self._outbox.hold(message)
            else:
                outgoing.append(message)
        if outgoing:
            self._outbox.send(outgoing)
        self._writer.write_next()

    def _send_notices(self) -> None:
        if not self._stopped:
            self._outbox.release()

    def _leader_may_have_changed(self) -> None:
        lead, leading = self._node.lead, self._node.is_leader
        if (lead, leading) == (self._last_lead, self._last_leading):
            return
        self._last_lead, self._last_leading = lead, leading
        log.info(
            "member %x: %s in term %d, leader %s",
            self.config.member_id, Role(self._node.role).name.lower(), self._node.term,
            f"{lead:x}" if lead else "none",
        )  # fmt: skip
        if lead != NO_NODE:
            self.leader_since = self._loop.time()
            if self._last_known_lead not in (NO_NODE, lead):
                self._reads.leader_changed()
            self._last_known_lead = lead
            self._reads.resend()
        for callback in list(self._leader_callbacks):
            callback(lead, leading)

    # time

    def _on_tick(self) -> None:
        if self._stopped:
            return
        now = self._loop.time()
        tick_s = self.config.tick_s
        late = now - self._next_tick
        if late > tick_s:
            self.late_ticks += 1
            self.late_tick_s_max = max(self.late_tick_s_max, late)
            if late > 2 * tick_s:
                log.warning("a tick came %.0f ms late: this process was starved or paused", late * 1000)
        # One tick only, however late: a process that was paused must notice what happened meanwhile before
        # it believes that others fell silent.
        self._next_tick = max(self._next_tick + tick_s, now)
        self._tick_handle = self._loop.call_at(self._next_tick, self._on_tick)
        queued = self._proposals.request_ids() if self._proposals else ()
        self._waiters.expire(lambda request_id: request_id in queued)
        try:
            self._node.tick()
            self._reads.tick()
            self._watch_disk(now)
            idle = not (self._proposals or self._conf_proposals or len(self._reads) or self._node.has_ready())
        except Exception as error:
            self._fail(error)
            return
        if not idle:
            self._schedule()

    def _watch_disk(self, now: float) -> None:
        """A leader whose log write hangs can acknowledge nothing: after an election timeout it hands over to
        the member that has come furthest (M21). Tried again each election timeout, since it may fail."""
        since, election_s = self._writer.since, self.config.election_s
        if since is None or not self._node.is_leader or now - since < election_s:
            return
        if now - self._handed_over_at < election_s:
            return
        self._handed_over_at = now
        status = self._node.status()
        peers = [
            (peer.match, peer.id)
            for peer in status.progress.values()
            if peer.recent_active and not peer.is_learner and peer.id != self.config.member_id
        ]
        log.warning("the log write has hung for %.1f s%s", now - since, "; handing over" if peers else "")
        if peers:
            self._node.transfer_leader(max(peers)[1])

    # the log

    def _store_now(self, message: Message, outgoing: list[Message]) -> bool:
        """Take note of a write that need not be synced, unless one before it is still under way."""
        if not self._writer.is_idle or message.snapshot is not None:
            return False
        write = LogWrite.of(message)
        if write.must_sync(self.hard_state):
            return False
        outgoing += self._note_stored(message, write)
        return True

    def _stored(self, batch: Sequence[Message], writes: Sequence[LogWrite]) -> None:
        """``writes`` are durable: let the core see them and release what waited for them."""
        for message, write in zip(batch, writes, strict=True):
            outgoing = self._note_stored(message, write)
            if outgoing:
                self._outbox.send(outgoing)

    def _note_stored(self, message: Message, write: LogWrite) -> list[Message]:
        """Let the core read what is stored, and take note of it soon. Returns what others have waited for."""
        if write.hard_state is not None:
            self._writer.hard_state = write.hard_state
            self._storage.set_hard_state(write.hard_state)
        if write.entries:
            self._storage.append(write.entries)
        own = self.config.member_id
        self._inbox += [response for response in message.responses if response.to == own]
        return [response for response in message.responses if response.to != own]

    async def _install(self, snapshot: Snapshot) -> None:
        log.info("installing a snapshot at entry %d, term %d", snapshot.index, snapshot.term)
        await self._apply_idle.wait()
        await self._application.install_image(snapshot)
        self._conf_state = snapshot.conf_state
        self._storage.apply_snapshot(snapshot)
        self._log_snapshot_index = snapshot.index
        self._reads.applied(self._application.applied_index)

    # the apply task

    def _apply_now(self, message: Message) -> bool:
        """Apply a few ordinary entries here, unless others come first or the state machine must be waited for."""
        entries = message.entries
        if self._group is None or not self._apply_idle.is_set() or not self._application.has_room:
            return False
        if self._applied_in_turn == self.turns:
            return False  # a backlog: the loop must run in between
        if slice_end(entries, 0) < len(entries) or entries[-1].type is not EntryType.NORMAL:
            return False
        self._applied_in_turn = self.turns
        self._apply(entries)
        self._inbox += message.responses
        self._maybe_compact()
        return True

    async def _apply_loop(self) -> None:
        while True:
            await self._apply_wake.wait()
            self._apply_wake.clear()
            while self._apply_queue:
                message = self._apply_queue[0]
                await self._apply_in_slices(message.entries)
                self._apply_queue.popleft()
                self._inbox += message.responses
                self._schedule()
            self._apply_idle.set()
            self._maybe_compact()

    async def _apply_in_slices(self, entries: Sequence[Entry]) -> None:
        start = 0
        while start < len(entries):
            await self._application.room()
            end = slice_end(entries, start)
            self._apply(entries[start:end])
            if entries[end - 1].type is not EntryType.NORMAL:
                # A power loss must not bring back the configuration before: who it needs may be gone by then, and
                # majorities of the one before that need not meet those of the present one.
                await self._application.make_durable()
            elif end < len(entries):
                await asyncio.sleep(0)
            start = end

    def _apply(self, entries: Iterable[Entry]) -> None:
        application, waiters = self._application, self._waiters
        for entry in entries:
            if entry.type is not EntryType.NORMAL:
                self._apply_conf_change(entry)
            elif entry.data:
                request_id = _request_id(entry.data)
                wanted = request_id in waiters
                outcome = application.apply(entry, entry.data[ID_BYTES:], wanted)
                if wanted:
                    waiters.resolve(request_id, outcome)
            else:
                application.apply_empty(entry)
        self._reads.applied(application.applied_index)

    def _apply_conf_change(self, entry: Entry) -> None:
        change = as_v2(decode_conf_change(entry))
        request_id = _request_id(change.context)
        payload = change.context[ID_BYTES:]
        refusal = self._application.check_conf_change(entry, change, payload) if payload else None
        if refusal is not None:  # the same on every member, so the core of none hears of the change
            self._application.apply_empty(entry)
            self._waiters.resolve(request_id, refusal)
            return
        self._conf_state = self._node.apply_conf_change(change)
        outcome = self._application.apply_conf_change(entry, self._conf_state, payload)
        self._waiters.resolve(request_id, outcome)

    # snapshots and truncation

    def _image_position(self) -> Snapshot:
        index = self._application.applied_index
        return Snapshot(index, self._storage.term(index), self._conf_state)

    def _start_snapshot(self, message: Message) -> None:
        self._sending_images += 1
        assert self._group is not None
        self._group.create_task(self._send_snapshot(message), name=f"snapshot-{message.to:x}")

    async def _send_snapshot(self, message: Message) -> None:
        """The core's message is a request: the image is made now, at what has been applied by now."""
        try:
            snapshot, image = await self._application.make_image()
        except (OSError, RaftError) as error:
            log.warning("no snapshot for %x: %s", message.to, error)
            self.snapshot_sent(message.to, False)
            self._sending_images -= 1
            return

        def done() -> None:
            self._sending_images -= 1
            self._application.release_image(image)

        self._transport.send_snapshot(message._replace(snapshot=snapshot), image, done)

    def _maybe_compact(self) -> None:
        """Truncate the log now and then, keeping entries for members to catch up with."""
        if self._compacting or self._sending_images or self._stopped:
            return
        config = self.config
        beyond = self._application.applied_index - self._log_snapshot_index
        if beyond <= config.snapshot_count + config.catch_up_entries and not self._holds_too_much():
            return
        self._compacting = True
        assert self._group is not None
        self._group.create_task(self._compact(), name="compact-log")

    def _holds_too_much(self) -> bool:
        """Whether truncation by size is due: not while most of it is still to be applied."""
        if self._storage.bytes <= self.config.log_bytes:
            return False
        return self._storage.index_before_last(self.config.log_bytes // 2) <= self._application.applied_index

    async def _compact(self) -> None:
        """Entries may go only once the state holds their effects *durably*: until then the log is all there is."""
        try:
            await self._application.make_durable()
            durable = self._application.durable_index
            index = durable - self.config.catch_up_entries
            if self._holds_too_much():
                index = max(index, min(durable, self._storage.index_before_last(self.config.log_bytes // 2)))
            if index <= self._log_snapshot_index or self._sending_images:
                return  # a received snapshot overtook this, or a peer needs the entries after the one it gets
            marker = Snapshot(index, self._storage.term(index), self._conf_state)
            await self._log.compact(marker)
            if index > self._log_snapshot_index:
                self._storage.compact(index)
                self._log_snapshot_index = index
        finally:
            self._compacting = False

    # life

    _group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run until cancelled. Raises FatalError when the log fails or an invariant breaks."""
        self._tick_handle = self._loop.call_at(self._next_tick, self._on_tick)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._group = tasks
                tasks.create_task(self._apply_loop(), name="apply")
                self._schedule()
                self._writer.start(tasks)
                await self._failure
        except BaseExceptionGroup as group:
            for error in group.exceptions:
                if isinstance(error, FatalError):
                    raise error from None
            raise
        finally:
            self._stop()

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            fatal = error if isinstance(error, FatalError) else FatalError(f"{type(error).__name__}: {error}")
            fatal.__cause__ = error if fatal is not error else None
            log.critical("raft stops: %s", error, exc_info=error)
            self._failure.set_exception(fatal)

    def _stop(self) -> None:
        self._stopped = True
        self._writer.stop()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        for request_id in self._proposals.request_ids():
            self._waiters.resolve(request_id, Stopped("this member is shutting down"))
        self._waiters.fail_all(OutcomeUnknown("this member stopped while the proposal was under way"))
        self._reads.fail_all(Stopped("this member is shutting down"))
        self._failure.cancel()


def _request_id(data: bytes) -> int:
    return int.from_bytes(data[:ID_BYTES], "big")
