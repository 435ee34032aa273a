"""The four roles and every way from one to another. Tables first: nothing else in the core sets a role.

A transition is looked up as (role, cause). A pair that is missing is a bug, not an event: a follower cannot win
an election, a leader does not stand for one. ``docs/raft.md`` holds the diagram that ``mermaid`` draws from the
table, so the picture cannot drift from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from .errors import InvariantViolation
from .types import Role


class Cause(StrEnum):
    """What makes a node change its role (Raft paper §5.2, figure 4; PreVote: thesis §9.6)."""

    PRE_VOTE_STARTED = "election timeout, PreVote on"
    ELECTION_STARTED = "election timeout, PreVote off"
    TRANSFER_STARTED = "told to take over (TimeoutNow)"
    PRE_VOTE_WON = "pre-votes from a quorum"
    ELECTION_WON = "votes from a quorum"
    ELECTION_LOST = "refused by a quorum"
    LEADER_FOUND = "heard the leader of this term"
    TERM_ADVANCED = "saw a higher term"
    QUORUM_LOST = "no quorum heard for an election timeout (CheckQuorum)"
    REMOVED = "no longer a voter (step_down_on_removal)"


INITIAL_ROLE: Final = Role.FOLLOWER

TRANSITIONS: Final[Mapping[Role, Mapping[Cause, Role]]] = {
    Role.FOLLOWER: {
        Cause.PRE_VOTE_STARTED: Role.PRE_CANDIDATE,
        Cause.ELECTION_STARTED: Role.CANDIDATE,
        Cause.TRANSFER_STARTED: Role.CANDIDATE,
        Cause.TERM_ADVANCED: Role.FOLLOWER,
    },
    Role.PRE_CANDIDATE: {
        Cause.PRE_VOTE_STARTED: Role.PRE_CANDIDATE,
        Cause.PRE_VOTE_WON: Role.CANDIDATE,
        Cause.ELECTION_LOST: Role.FOLLOWER,
        Cause.LEADER_FOUND: Role.FOLLOWER,
        Cause.TERM_ADVANCED: Role.FOLLOWER,
    },
    Role.CANDIDATE: {
        Cause.PRE_VOTE_STARTED: Role.PRE_CANDIDATE,
        Cause.ELECTION_STARTED: Role.CANDIDATE,
        Cause.ELECTION_WON: Role.LEADER,
        Cause.ELECTION_LOST: Role.FOLLOWER,
        Cause.LEADER_FOUND: Role.FOLLOWER,
        Cause.TERM_ADVANCED: Role.FOLLOWER,
    },
    Role.LEADER: {
        Cause.TERM_ADVANCED: Role.FOLLOWER,
        Cause.QUORUM_LOST: Role.FOLLOWER,
        Cause.REMOVED: Role.FOLLOWER,
    },
}


def next_role(role: Role, cause: Cause) -> Role:
    """The role after ``cause``; raises InvariantViolation for a transition that does not exist."""
    try:
        return TRANSITIONS[role][cause]
    except KeyError:
        raise InvariantViolation(f"a {role.name.lower()} cannot change role because: {cause.value}") from None


def mermaid() -> str:
    """The table as a mermaid state diagram, in the table's order."""
    lines = ["stateDiagram-v2", f"    [*] --> {_label(INITIAL_ROLE)}: start or restart"]
    for role, ways in TRANSITIONS.items():
        lines += [f"    {_label(role)} --> {_label(target)}: {cause.value}" for cause, target in ways.items()]
    return "\n".join(lines) + "\n"


def _label(role: Role) -> str:
    return "".join(word.capitalize() for word in role.name.split("_"))
