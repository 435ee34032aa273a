"""Replays scripted clusters (cases/raft/README.md §4) and compares every event with what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from raft.core import APPEND_THREAD, APPLY_THREAD, Entry, Message, ProposalDropped, StepPeerNotFound

from .adapter import ELECTION_TICK, CoreAdapter
from .views import TYPES, View, message_view

MakeNode = Callable[[int, View, View | None, Callable[[View], None]], CoreAdapter]

_THREADS = {"append": APPEND_THREAD, "apply": APPLY_THREAD}
_ROLE_EVENTS = ("became", "config", "init")
_COMPLETE_LOGS = ("debug", "info")


class Difference(NamedTuple):
    """The first event of a step that is not the recorded one; None where one side has no more."""

    line: int
    command: str
    expected: View | None
    got: View | None


class Member:
    """A node with its storage threads' queues and the history of its state machine."""

    def __init__(self, core: CoreAdapter, first: View, is_async: bool) -> None:
        self.core = core
        self.history = [first]
        self.is_async = is_async
        self.queues: dict[str, list[Message]] = {"append": [], "apply": []}
        core.set_snapshot_source(lambda: self.history[-1])

    def apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            state = self.history[-1]["conf_state"]
            if self.core.is_conf_change(entry):
                state = self.core.apply_conf_change(entry)
            self.history.append({"index": entry.index, "term": entry.term, "conf_state": state})


class Script:
    """Executes commands; ``run`` returns the events of one step."""

    def __init__(self, make_node: MakeNode = CoreAdapter) -> None:
        self._make_node = make_node
        self._members: dict[int, Member] = {}
        self._wire: list[Message] = []
        self._events: list[View] = []

    def run(self, command: str, args: View) -> list[View]:
        self._events = []
        handler = getattr(self, "do_" + command.replace("-", "_"), None)
        if handler is None:
            raise ValueError(f"unknown command {command}")
        handler(args)
        return self._events

    def _emit(self, event: View) -> None:
        self._events.append(event)

    def _core(self, node: int) -> CoreAdapter:
        return self._members[node].core

    @contextmanager
    def _collect(self) -> Iterator[list[View]]:
        outer, self._events = self._events, []
        try:
            yield self._events
        finally:
            self._events = outer

    def _block(self, node: int, kind: str, action: Callable[[], object]) -> None:
        with self._collect() as inner:
            action()
        self._emit({"ev": "block", "node": node, "kind": kind, "events": inner})

    def _each(self, nodes: list[int], kind: str, action: Callable[[int], object]) -> None:
        """Several nodes are grouped, one alone is not."""
        for node in nodes:
            if len(nodes) > 1:
                self._block(node, kind, lambda node=node: action(node))  # type: ignore[misc]
            else:
                action(node)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except ProposalDropped:
            self._emit({"ev": "error", "code": "proposal_dropped"})
        except StepPeerNotFound:
            self._emit({"ev": "error", "code": "step_peer_not_found"})

    # --- the machinery of a node

    def _handle_ready(self, node: int) -> None:
        member = self._members[node]
        view, messages, hard_state, entries, snapshot, committed = member.core.ready()
        event: View = {"ev": "empty_ready", "node": node}
        if view is not None:
            event = {"ev": "ready", "node": node, **view}
        self._emit(event)
        if not member.is_async:
            member.core.persist(hard_state, entries, snapshot)
            member.apply(committed)
        queues = {thread: member.queues[name] for name, thread in _THREADS.items()}
        for message in messages:
            queues.get(message.to, self._wire).append(message)
        if not member.is_async:
            member.core.advance()

    def _run_thread(self, node: int, kind: str) -> None:
        member = self._members[node]
        if not member.queues[kind]:
            self._emit({"ev": "no_work"})
            return
        message = member.queues[kind].pop(0)
        with self._collect() as logged:
            hard_state, entries, snapshot = member.core.storage_payload(message)
            if kind == "append":
                member.core.persist(hard_state, entries, snapshot)
            else:
                member.apply(entries)
        self._emit(
            {
                "ev": "storage_work",
                "node": node,
                "msg": message_view(message._replace(responses=())),
                "logged": logged,
                "responses": [message_view(response) for response in message.responses],
            }
        )
        self._wire += message.responses

    def _drain_thread(self, node: int, kind: str) -> None:
        while self._members[node].queues[kind]:
            self._run_thread(node, kind)

    def _take(self, node: int, kind: str | None, *, keep_local: bool) -> list[Message]:
        """Remove the messages for ``node`` from the wire, in order."""
        taken: list[Message] = []
        rest: list[Message] = []
        for message in self._wire:
            wanted = message.to == node and kind in (None, TYPES[message.type])
            if keep_local and (message.from_ == message.to or message.from_ in _THREADS.values()):
                wanted = False
            (taken if wanted else rest).append(message)
        self._wire = rest
        return taken

    def _deliver(self, node: int, kind: str | None = None) -> int:
        messages = self._take(node, kind, keep_local=False)
        for message in messages:
            self._emit({"ev": "delivered", "msg": message_view(message)})
            self._attempt(lambda message=message: self._core(node).step(message))  # type: ignore[misc]
        return len(messages)

    # --- commands

    def do_add_nodes(self, args: View) -> None:
        index = args["snapshot_index"]
        members = {"voters": args["voters"], "learners": args["learners"]}
        empty = {"voters_outgoing": [], "learners_next": [], "auto_leave": False}
        for _ in range(args["count"]):
            node = len(self._members) + 1
            first: View = {"index": index, "term": 1 if index else 0, "conf_state": members | empty}
            core = self._make_node(node, args, first if index else None, self._emit)
            self._members[node] = Member(core, first, args["async_storage_writes"])

    def do_campaign(self, args: View) -> None:
        self._core(args["node"]).campaign()

    def do_propose(self, args: View) -> None:
        self._attempt(lambda: self._core(args["node"]).propose(args["data"]))

    def do_propose_conf_change(self, args: View) -> None:
        core = self._core(args["node"])
        self._attempt(lambda: core.propose_conf_change(args["changes"], args["v1"], args["transition"]))

    def do_process_ready(self, args: View) -> None:
        self._each(args["nodes"], "ready", self._handle_ready)

    def do_process_append_thread(self, args: View) -> None:
        self._each(args["nodes"], "append_thread", lambda node: self._run_thread(node, "append"))

    def do_process_apply_thread(self, args: View) -> None:
        self._each(args["nodes"], "apply_thread", lambda node: self._run_thread(node, "apply"))

    def do_deliver_msgs(self, args: View) -> None:
        count = sum(self._deliver(node, args["type"]) for node in args["to"])
        for node in args["drop"]:
            dropped = self._take(node, args["type"], keep_local=True)
            count += len(dropped)
            for message in dropped:
                self._emit({"ev": "dropped", "msg": message_view(message)})
        if not count:
            self._emit({"ev": "no_messages"})

    def do_stabilize(self, args: View) -> None:
        nodes = args["nodes"] or sorted(self._members)
        while self._stabilize_once(nodes):
            pass

    def _stabilize_once(self, nodes: list[int]) -> bool:
        busy = False
        for node in nodes:
            if self._core(node).has_ready():
                busy = True
                self._block(node, "ready", lambda node=node: self._handle_ready(node))  # type: ignore[misc]
        for node in nodes:
            if any(message.to == node for message in self._wire):
                busy = True
                self._block(node, "receive", lambda node=node: self._deliver(node))  # type: ignore[misc]
        for kind in _THREADS:
            for node in nodes:
                if self._members[node].queues[kind]:
                    busy = True
                    drain = lambda node=node, kind=kind: self._drain_thread(node, kind)  # noqa: E731
                    self._block(node, kind + "_thread", drain)
        return busy

    def do_tick_heartbeat(self, args: View) -> None:
        self._core(args["node"]).tick()

    def do_tick_election(self, args: View) -> None:
        for _ in range(ELECTION_TICK):
            self._core(args["node"]).tick()

    def do_set_randomized_election_timeout(self, args: View) -> None:
        self._core(args["node"]).set_randomized_timeout(args["ticks"])

    def do_transfer_leadership(self, args: View) -> None:
        self._core(args["from"]).transfer_leader(args["to"])

    def do_forget_leader(self, args: View) -> None:
        self._core(args["node"]).forget_leader()

    def do_report_unreachable(self, args: View) -> None:
        self._core(args["on"]).report_unreachable(args["peer"])

    def do_send_snapshot(self, args: View) -> None:
        sender = self._members[args["from"]]
        message = sender.core.snapshot_message(args["to"], sender.history[-1])
        self._wire.append(message)
        self._emit({"ev": "queued", "msg": message_view(message)})

    def do_compact(self, args: View) -> None:
        self._core(args["node"]).compact(args["new_first_index"])
        self.do_raft_log(args)

    def do_raft_log(self, args: View) -> None:
        first, last, entries = self._core(args["node"]).stored()
        for entry in entries:
            self._emit({"ev": "log_entry", "entry": entry})
        if not entries:
            self._emit({"ev": "log_empty", "first_index": first, "last_index": last})

    def do_raft_state(self, args: View) -> None:
        for node, member in self._members.items():
            self._emit({"ev": "state", "node": node, **member.core.state()})

    def do_status(self, args: View) -> None:
        for peer in self._core(args["node"]).progress():
            self._emit({"ev": "progress", **peer})

    def do_log_level(self, args: View) -> None:
        """Only says which events were recorded; that is in the record."""


def replay_file(
    path: Path, make_node: MakeNode = CoreAdapter, *, role_events: bool = True, notes: bool = True
) -> tuple[int, Difference | None]:
    """Run a script; the number of compared steps and the first difference."""
    script, compared = Script(make_node), 0
    with path.open() as lines:
        for line in lines:
            step: dict[str, Any] = json.loads(line)
            events = script.run(step["cmd"], step["args"])
            if not step["output_visible"]:
                continue
            complete = step["visibility"] in _COMPLETE_LOGS
            keep = (role_events and complete, notes and complete)
            expected = _comparable(step["expect"], *keep)
            got = _comparable(json.loads(json.dumps(events)), *keep)
            if expected != got:
                return compared, _first_difference(step, expected, got)
            compared += 1
    return compared, None


def _comparable(events: list[View], roles: bool, notes: bool) -> list[View]:
    kept = []
    for event in events:
        if (event["ev"] in _ROLE_EVENTS and not roles) or (event["ev"] == "note" and not notes):
            continue
        nested: View = {key: _comparable(event[key], roles, notes) for key in ("events", "logged") if key in event}
        kept.append({**event, **nested})
    return kept


def _first_difference(step: View, expected: list[View], got: list[View]) -> Difference:
    pairs = zip([*expected, None], [*got, None], strict=False)
    left, right = next((a, b) for a, b in pairs if a != b)
    if left and right and left["ev"] == right["ev"] == "block" and left["events"] != right["events"]:
        return _first_difference(step, left["events"], right["events"])
    return Difference(step["line"], step["cmd"], left, right)
