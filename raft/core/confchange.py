"""Configuration changes: their bytes in an entry, and the rules that turn one configuration into the next.

Raft thesis §4 and paper §6; contract §14. A change takes effect when its entry is applied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .errors import ConfChangeError, ConfChangeProblem, MalformedMessage
from .tracker import Configuration, Progress, ProgressTracker
from .types import ConfChange, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType

# --- bytes ------------------------------------------------------------------------------------------------

_HEAD: Final = struct.Struct(">BBH")  # format version, transition, number of changes
_CHANGE: Final = struct.Struct(">BQ")  # type, node id
_VERSION: Final = 1
_MAX_CHANGES: Final = (1 << 16) - 1


def encode(change: ConfChange | ConfChangeV2) -> tuple[EntryType, bytes]:
    """The entry type and the entry data of a change.

    Leaving a joint configuration without a context is no bytes at all, so that no size limit can refuse it.
    Raises ConfChangeError where there are more changes than the format counts.
    """
    if isinstance(change, ConfChange):
        body = _HEAD.pack(_VERSION, 0, 1) + _CHANGE.pack(change.type, change.node_id)
        return EntryType.CONF_V1, body + change.context
    if change == ConfChangeV2():
        return EntryType.CONF_V2, b""
    if len(change.changes) > _MAX_CHANGES:
        raise ConfChangeError(ConfChangeProblem.TOO_MANY_CHANGES)
    head = _HEAD.pack(_VERSION, change.transition, len(change.changes))
    body = b"".join(_CHANGE.pack(one.type, one.node_id) for one in change.changes)
    return EntryType.CONF_V2, head + body + change.context


def decode(entry: Entry) -> ConfChange | ConfChangeV2:
    """The change in a CONF_V1 or CONF_V2 entry; raises MalformedMessage where the bytes are not one."""
    if entry.type == EntryType.NORMAL:
        raise MalformedMessage(f"entry {entry.index} is not a configuration change")
    if entry.type == EntryType.CONF_V2 and not entry.data:
        return ConfChangeV2()
    try:
        version, transition, count = _HEAD.unpack_from(entry.data)
        end = _HEAD.size + count * _CHANGE.size
        if version != _VERSION or len(entry.data) < end:
            raise ValueError("unknown version or too short")
        pairs = _CHANGE.iter_unpack(entry.data[_HEAD.size : end])
        changes = tuple(ConfChange(ConfChangeType(kind), node_id) for kind, node_id in pairs)
        context = entry.data[end:]
        if entry.type == EntryType.CONF_V1:
            (single,) = changes
            return single._replace(context=context)
        return ConfChangeV2(changes, ConfChangeTransition(transition), context)
    except (struct.error, ValueError) as error:
        raise MalformedMessage(f"entry {entry.index} holds no configuration change: {error}") from error


def as_v2(change: ConfChange | ConfChangeV2) -> ConfChangeV2:
    """A change in the general form."""
    if isinstance(change, ConfChangeV2):
        return change
    return ConfChangeV2((ConfChange(change.type, change.node_id),), ConfChangeTransition.AUTO, change.context)


def leaves_joint(change: ConfChangeV2) -> bool:
    """No changes and the automatic transition: leave the joint configuration."""
    return not change.changes and change.transition == ConfChangeTransition.AUTO


def joint_auto_leave(change: ConfChangeV2) -> bool | None:
    """None when the simple protocol serves; else whether the joint configuration is left automatically."""
    if change.transition == ConfChangeTransition.AUTO and len(change.changes) <= 1:
        return None
    return change.transition != ConfChangeTransition.JOINT_EXPLICIT


# --- rules ------------------------------------------------------------------------------------------------


class Changer:
    """Computes the next configuration from the one in ``tracker``, which it does not touch.

    Each method returns the new configuration with the progress of its members in ascending id order, and raises
    ConfChangeError where the change is not allowed. A new member starts at ``max(last_index, 1)``.
    """

    def __init__(self, tracker: ProgressTracker, last_index: int) -> None:
        self._tracker = tracker
        self._last_index = last_index
        config = tracker.config
        self._incoming = set(config.incoming)
        self._outgoing = set(config.outgoing)
        self._learners = set(config.learners)
        self._learners_next = set(config.learners_next)
        self._auto_leave = config.auto_leave
        self._progress = {node: progress.copy() for node, progress in tracker.progress.items()}

    def simple(self, changes: Iterable[ConfChange]) -> tuple[Configuration, dict[int, Progress]]:
        """Changes that move at most one voter, without a joint configuration (thesis §4.1)."""
        if self._outgoing:
            raise ConfChangeError(ConfChangeProblem.SIMPLE_IN_JOINT)
        self._apply(changes)
        if len(self._tracker.config.incoming ^ self._incoming) > 1:
            raise ConfChangeError(ConfChangeProblem.MORE_THAN_ONE_VOTER)
        return self._result()

    def enter_joint(
        self, changes: Iterable[ConfChange], *, auto_leave: bool
    ) -> tuple[Configuration, dict[int, Progress]]:
        """Any number of changes: from now on both the old and the new voters must agree (paper §6)."""
        if self._outgoing:
            raise ConfChangeError(ConfChangeProblem.ALREADY_JOINT)
        if not self._incoming:
            raise ConfChangeError(ConfChangeProblem.NO_VOTERS)
        self._outgoing = set(self._incoming)
        self._apply(changes)
        self._auto_leave = auto_leave
        return self._result()

    def leave_joint(self) -> tuple[Configuration, dict[int, Progress]]:
        """Only the new voters stay; voters demoted meanwhile become learners."""
        if not self._outgoing:
            raise ConfChangeError(ConfChangeProblem.NOT_JOINT)
        for node in self._learners_next:
            self._learners.add(node)
            self._progress[node].is_learner = True
        for node in self._outgoing - self._incoming - self._learners:
            del self._progress[node]
        self._learners_next.clear()
        self._outgoing.clear()
        self._auto_leave = False
        return self._result()

    def _result(self) -> tuple[Configuration, dict[int, Progress]]:
        config = Configuration(
            frozenset(self._incoming),
            frozenset(self._outgoing),
            frozenset(self._learners),
            frozenset(self._learners_next),
            self._auto_leave,
        )
        config.check(self._progress.keys())
        return config, dict(sorted(self._progress.items()))

    def _apply(self, changes: Iterable[ConfChange]) -> None:
        for change in changes:
            if change.node_id:  # id 0 is how an application voids a change it rejected
                _RULES[change.type](self, change.node_id)
        if not self._incoming:
            raise ConfChangeError(ConfChangeProblem.REMOVES_ALL_VOTERS)

    def _add_voter(self, node: int) -> None:
        if node not in self._progress:
            self._add_member(node, is_learner=False)
            return
        self._progress[node].is_learner = False
        self._learners.discard(node)
        self._learners_next.discard(node)
        self._incoming.add(node)

    def _add_learner(self, node: int) -> None:
        if node not in self._progress:
            self._add_member(node, is_learner=True)
            return
        if node in self._learners:
            return
        self._incoming.discard(node)
        self._learners_next.discard(node)
        if node in self._outgoing:
            self._learners_next.add(node)  # it still votes in the outgoing half, so it is no learner yet
        else:
            self._progress[node].is_learner = True
            self._learners.add(node)

    def _remove(self, node: int) -> None:
        if node not in self._progress:
            return
        self._incoming.discard(node)
        self._learners.discard(node)
        self._learners_next.discard(node)
        if node not in self._outgoing:
            del self._progress[node]

    def _update(self, node: int) -> None:
        """Only the application cares: the core knows no addresses."""

    def _add_member(self, node: int, *, is_learner: bool) -> None:
        (self._learners if is_learner else self._incoming).add(node)
        next_index = max(self._last_index, 1)
        progress = Progress(0, next_index, self._tracker.new_inflights(), is_learner=is_learner)
        # Counts as heard, or CheckQuorum would depose the leader before the newcomer could answer once.
        progress.recent_active = True
        self._progress[node] = progress


_RULES: Final[Mapping[ConfChangeType, Callable[[Changer, int], None]]] = {
    ConfChangeType.ADD_VOTER: Changer._add_voter,
    ConfChangeType.ADD_LEARNER: Changer._add_learner,
    ConfChangeType.REMOVE: Changer._remove,
    ConfChangeType.UPDATE: Changer._update,
}


def restore(
    tracker: ProgressTracker, state: ConfState, last_index: int
) -> tuple[Configuration, dict[int, Progress]]:
    """The configuration a ConfState describes, reached by the ordinary rules from an empty tracker.

    Raises ConfChangeError where no sequence of changes leads to ``state``.
    """
    scratch = ProgressTracker(tracker.max_inflight_messages, tracker.max_inflight_bytes)
    if state.voters_outgoing:
        for node in state.voters_outgoing:
            _adopt(scratch, Changer(scratch, last_index).simple([ConfChange(ConfChangeType.ADD_VOTER, node)]))
        _adopt(
            scratch,
            Changer(scratch, last_index).enter_joint(_incoming_changes(state), auto_leave=state.auto_leave),
        )
    else:
        for change in _incoming_changes(state):
            _adopt(scratch, Changer(scratch, last_index).simple([change]))
    if not _equivalent(scratch.config.conf_state(), state):
        raise ConfChangeError(ConfChangeProblem.UNREACHABLE)
    return scratch.config, scratch.progress


def _incoming_changes(state: ConfState) -> list[ConfChange]:
    changes = [ConfChange(ConfChangeType.REMOVE, node) for node in state.voters_outgoing]
    changes += [ConfChange(ConfChangeType.ADD_VOTER, node) for node in state.voters]
    changes += [ConfChange(ConfChangeType.ADD_LEARNER, node) for node in state.learners]
    return changes + [ConfChange(ConfChangeType.ADD_LEARNER, node) for node in state.learners_next]


def _adopt(tracker: ProgressTracker, result: tuple[Configuration, dict[int, Progress]]) -> None:
    tracker.config, tracker.progress = result


def _equivalent(left: ConfState, right: ConfState) -> bool:
    return normalized(left) == normalized(right)


def normalized(state: ConfState) -> ConfState:
    """The same configuration with every list sorted, so that ``==`` compares configurations."""
    return ConfState(
        tuple(sorted(state.voters)),
        tuple(sorted(state.learners)),
        tuple(sorted(state.voters_outgoing)),
        tuple(sorted(state.learners_next)),
        state.auto_leave,
    )
