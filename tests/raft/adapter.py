"""One node of a scripted cluster: the core, its storage in memory, and the corpus' view of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from raft.core import (
    NO_LIMIT,
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Config,
    Entry,
    EntryType,
    HardState,
    MemoryStorage,
    Message,
    MessageType,
    ProposalDropped,
    RawNode,
    ReadOnlyOption,
    Snapshot,
    StepPeerNotFound,
    TraceEvent,
    decode_conf_change,
)

from .views import (
    ROLES,
    TYPES,
    View,
    conf_state_from,
    conf_state_view,
    entry_view,
    message_view,
    party,
    ready_view,
    trace_view,
)

OPERATIONS = {
    "add_voter": ConfChangeType.ADD_VOTER,
    "add_learner": ConfChangeType.ADD_LEARNER,
    "remove": ConfChangeType.REMOVE,
    "update": ConfChangeType.UPDATE,
}
TRANSITIONS = {
    "auto": ConfChangeTransition.AUTO,
    "implicit": ConfChangeTransition.JOINT_IMPLICIT,
    "explicit": ConfChangeTransition.JOINT_EXPLICIT,
}
READ_ONLY = {
    "safe": ReadOnlyOption.SAFE,
    "lease": ReadOnlyOption.LEASE_BASED,
    "lease_based": ReadOnlyOption.LEASE_BASED,
}
ELECTION_TICK = 3


def changes_from(pairs: Sequence[Sequence[Any]]) -> tuple[ConfChange, ...]:
    """The corpus' ``[operation, id]`` pairs."""
    return tuple(ConfChange(OPERATIONS[name], node) for name, node in pairs)


def snapshot_from(view: View) -> Snapshot:
    return Snapshot(view["index"], view["term"], conf_state_from(view["conf_state"]))


class HistoryStorage(MemoryStorage):
    """Its snapshot is whatever the state machine has reached, whatever was compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.source: Callable[[], View] | None = None

    def snapshot(self) -> Snapshot:
        return super().snapshot() if self.source is None else snapshot_from(self.source())


class CoreAdapter:
    """``dropped`` and ``not_found`` replace the core's exceptions for a harness that has its own."""

    def __init__(
        self,
        node_id: int,
        config: View,
        snapshot: View | None,
        emit: Callable[[View], None],
        dropped: type[Exception] | None = None,
        not_found: type[Exception] | None = None,
    ) -> None:
        self._emit, self._dropped, self._not_found = emit, dropped, not_found
        self.storage = HistoryStorage()
        if snapshot is not None:
            self.storage.apply_snapshot(snapshot_from(snapshot))
        self.node = RawNode(
            Config(
                id=node_id,
                storage=self.storage,
                rng=random.Random(node_id),
                election_tick=ELECTION_TICK,
                heartbeat_tick=1,
                applied=snapshot["index"] if snapshot else 0,
                max_size_per_msg=NO_LIMIT,
                max_committed_size_per_ready=config.get("max_committed_size_per_ready") or NO_LIMIT,
                max_inflight_msgs=config.get("max_inflight_msgs") or NO_LIMIT,
                async_storage_writes=config["async_storage_writes"],
                check_quorum=config["check_quorum"],
                pre_vote=config["pre_vote"],
                read_only=READ_ONLY[config["read_only"]],
                disable_conf_change_validation=config["disable_conf_change_validation"],
                step_down_on_removal=config["step_down_on_removal"],
                trace=self._traced,
            )
        )

    def _traced(self, event: TraceEvent) -> None:
        view = trace_view(event)
        if view is not None:
            self._emit(view)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except ProposalDropped as error:
            if self._dropped is None:
                raise
            raise self._dropped from error
        except StepPeerNotFound as error:
            if self._not_found is None:
                raise
            raise self._not_found from error

    # --- what scripts do to a node

    def campaign(self) -> None:
        self.node.campaign()

    def propose(self, data: str) -> None:
        self._guarded(lambda: self.node.propose(data.encode()))

    def propose_conf_change(self, changes: Sequence[Sequence[Any]], v1: bool, transition: str) -> None:
        parsed = changes_from(changes)
        change = parsed[0] if v1 else ConfChangeV2(parsed, TRANSITIONS[transition or "auto"])
        self._guarded(lambda: self.node.propose_conf_change(change))

    def tick(self) -> None:
        self.node.tick()

    def set_randomized_timeout(self, ticks: int) -> None:
        self.node.set_randomized_election_timeout(ticks)

    def transfer_leader(self, target: int) -> None:
        self.node.transfer_leader(target)

    def forget_leader(self) -> None:
        self.node.forget_leader()

    def report_unreachable(self, peer: int) -> None:
        self.node.report_unreachable(peer)

    def step(self, message: Message) -> None:
        self._guarded(lambda: self.node.step(message))

    # --- what a driver does

    def has_ready(self) -> bool:
        return self.node.has_ready()

    def ready(self) -> tuple[View | None, Any, Any, Any, Any, Any]:
        ready = self.node.ready()
        view = ready_view(ready)
        return view, ready.messages, ready.hard_state, ready.entries, ready.snapshot, ready.committed_entries

    def advance(self) -> None:
        self.node.advance()

    def apply_conf_change(self, entry: Entry) -> View:
        return conf_state_view(self.node.apply_conf_change(decode_conf_change(entry)))

    def is_conf_change(self, entry: Entry) -> bool:
        return entry.type != EntryType.NORMAL

    def entry_id(self, entry: Entry) -> tuple[int, int]:
        """Asked by the reference data's own harness, like much here."""
        return entry.term, entry.index

    def persist(self, hard_state: HardState | None, entries: Sequence[Entry], snapshot: Snapshot | None) -> None:
        if hard_state is not None:
            self.storage.set_hard_state(hard_state)
        if snapshot is not None:
            self.storage.apply_snapshot(snapshot)
        self.storage.append(entries)

    def storage_payload(self, message: Message) -> tuple[HardState | None, tuple[Entry, ...], Snapshot | None]:
        hard_state = HardState(message.term, message.vote, message.commit)
        return hard_state if any(hard_state) else None, message.entries, message.snapshot

    def compact(self, first_index: int) -> None:
        self.storage.compact(first_index)

    def set_snapshot_source(self, source: Callable[[], View]) -> None:
        self.storage.source = source

    def snapshot_message(self, to: int, snapshot: View) -> Message:
        return Message(MessageType.SNAP, to, self.node.id, self.node.term, snapshot=snapshot_from(snapshot))

    # --- what scripts see

    def stored(self) -> tuple[int, int, list[View]]:
        first, last = self.storage.first_index(), self.storage.last_index()
        entries = self.storage.entries(first, last + 1, NO_LIMIT) if last >= first else ()
        return first, last, [entry_view(entry) for entry in entries]

    def state(self) -> View:
        status = self.node.status()
        voters = status.config.voters + status.config.voters_outgoing
        return {
            "role": ROLES[status.role],
            "voter": status.id in voters,
            "term": status.term,
            "lead": status.lead,
        }

    def progress(self) -> list[View]:
        return [
            {
                "id": peer.id,
                "state": peer.state.name.lower(),
                "match": peer.match,
                "next": peer.next,
                "learner": peer.is_learner,
                "paused": peer.paused,
                "pending_snapshot": peer.pending_snapshot,
                "recent_active": peer.recent_active,
                "inflight": peer.inflight,
                "inflight_full": peer.inflight_full,
            }
            for peer in self.node.status().progress.values()
        ]

    def view(self, message: Message) -> View:
        return message_view(message)

    def meta(self, message: Message) -> tuple[int | str, int | str, str, list[Message]]:
        return party(message.from_), party(message.to), TYPES[message.type], list(message.responses)
