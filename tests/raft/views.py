"""The corpus' JSON form of entries, messages, snapshots and trace events."""

from __future__ import annotations

from typing import Any

from raft.core import (
    APPEND_THREAD,
    APPLY_THREAD,
    EMPTY_HARD_STATE,
    ConfChangeType,
    ConfState,
    Entry,
    EntryType,
    Message,
    MessageType,
    Ready,
    Role,
    Snapshot,
    TraceEvent,
    as_v2,
    decode_conf_change,
)
from raft.core.trace import (
    AppendAckIgnored,
    CampaignRefused,
    ConfChangeIgnored,
    ConfigSwitched,
    LogTruncated,
    NodeStarted,
    RefusedCampaign,
    RoleChanged,
    VoteIgnored,
)

View = dict[str, Any]

LETTERS = {
    ConfChangeType.ADD_VOTER: "v",
    ConfChangeType.ADD_LEARNER: "l",
    ConfChangeType.REMOVE: "r",
    ConfChangeType.UPDATE: "u",
}
TYPES = {kind: "Msg" + "".join(word.capitalize() for word in kind.name.split("_")) for kind in MessageType}
ROLES = {role: role.name.lower() for role in Role}


def party(node: int) -> int | str:
    return {APPEND_THREAD: "append", APPLY_THREAD: "apply"}.get(node, node)


def conf_state_view(state: ConfState) -> View:
    return {
        "voters": list(state.voters),
        "voters_outgoing": list(state.voters_outgoing),
        "learners": list(state.learners),
        "learners_next": list(state.learners_next),
        "auto_leave": state.auto_leave,
    }


def conf_state_from(view: View) -> ConfState:
    return ConfState(
        tuple(view["voters"]),
        tuple(view["learners"]),
        tuple(view["voters_outgoing"]),
        tuple(view["learners_next"]),
        view["auto_leave"],
    )


def snapshot_view(snapshot: Snapshot | None) -> View | None:
    if snapshot is None:
        return None
    return {
        "index": snapshot.index,
        "term": snapshot.term,
        "conf_state": conf_state_view(snapshot.conf_state),
    }


def entry_view(entry: Entry) -> View:
    view: View = {"term": entry.term, "index": entry.index, "type": entry.type.name.lower()}
    if entry.type == EntryType.NORMAL:
        view["data"] = entry.data.decode()
    else:
        changes = as_v2(decode_conf_change(entry)).changes
        view["changes"] = " ".join(f"{LETTERS[change.type]}{change.node_id}" for change in changes)
    return view


def message_view(message: Message) -> View:
    return {
        "from": party(message.from_),
        "to": party(message.to),
        "type": TYPES[message.type],
        "term": message.term,
        "log_term": message.log_term,
        "index": message.index,
        "reject": message.reject,
        "reject_hint": message.reject_hint,
        "commit": message.commit,
        "vote": message.vote,
        "entries": [entry_view(entry) for entry in message.entries],
        "snapshot": snapshot_view(message.snapshot),
        "responses": [message_view(response) for response in message.responses],
    }


def ready_view(ready: Ready) -> View | None:
    """None for a Ready with nothing in it."""
    if ready == Ready():
        return None
    soft, hard = ready.soft_state, ready.hard_state
    reads = [{"index": read.index, "context": read.context.decode()} for read in ready.read_states]
    return {
        "must_sync": ready.must_sync,
        "soft_state": None if soft is None else {"lead": soft.lead, "role": ROLES[soft.role]},
        "hard_state": None if hard in (None, EMPTY_HARD_STATE) else hard and hard._asdict(),
        "read_states": reads or None,
        "entries": [entry_view(entry) for entry in ready.entries],
        "snapshot": snapshot_view(ready.snapshot),
        "committed_entries": [entry_view(entry) for entry in ready.committed_entries],
        "messages": [message_view(message) for message in ready.messages],
    }


def trace_view(event: TraceEvent) -> View | None:
    """The corpus' event, None for events it does not know."""
    match event:
        case RoleChanged(node, role, term):
            return {"ev": "became", "node": node, "role": ROLES[role], "term": term}
        case ConfigSwitched(node, state):
            return {"ev": "config", "node": node, "config": conf_state_view(state)}
        case NodeStarted():
            view = event._asdict()
            view["voters"] = list(view.pop("conf_state").voters)
            return {"ev": "init", **view}
        case _:
            return _note_view(event)


def _note_view(event: TraceEvent) -> View | None:
    match event:
        case AppendAckIgnored(_, reason):
            fields: View = {"what": "append_ack_ignored", "reason": reason.value}
        case VoteIgnored(node, kind, peer, remaining):
            fields = {"what": "vote_ignored_lease", "node": node, "type": TYPES[kind]}
            fields |= {"from": peer, "remaining_ticks": remaining}
        case ConfChangeIgnored(node=node):
            fields = {"what": "conf_change_ignored", "node": node}
        case CampaignRefused(node, reason) if reason != RefusedCampaign.ALREADY_LEADER:
            fields = {"what": "campaign_refused", "node": node}
        case LogTruncated(_, index):
            fields = {"what": "log_truncated", "index": index}
        case _:
            return None
    return {"ev": "note", **fields}
