"""When a healed core may stand still all the same.

A configuration is in force on a member once it is applied there (etcd's Raft; the paper's: once it is in the log).
Who did not hear that a change was committed goes by the configuration before, and asks voters that may be gone for
good. Two ends of that are no fault of ours. Everything else is, a configuration that was taken back before all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chaos.sim.member import Process
    from raft.core.status import Status
    from raft.core.types import ConfState

LIVELOCK: Final = "progress not demanded: no pre-vote, and ever higher terms of a voter behind"
HOPELESS: Final = "progress not demanded: nobody could win by the configuration and log that it has"
EXCUSES: Final = (LIVELOCK, HOPELESS)

TERMS: Final = 5
"""So many elections in half of the time are no accident."""


def excuse(processes: Sequence[Process], terms: int, *, in_force: ConfState, pre_vote: bool) -> str:
    """Why the core may stand still; empty when there is no reason.

    ``terms`` is by how much the highest term rose in the second half of the time, ``in_force`` the newest
    configuration that any member has applied.
    """
    statuses = [process.driver.status() for process in processes]
    behind = any(status.config != in_force for status in statuses if status.id in in_force.voters)
    if not behind or any(_taken_back(process) for process in processes):
        return ""
    if not pre_vote and terms >= TERMS:
        # The one behind does not know a new voter, which stays in an older term and is not heard by it.
        return LIVELOCK
    return "" if any(_can_win(status, statuses) for status in statuses) else HOPELESS


def _taken_back(process: Process) -> bool:
    """Whether a configuration that was in force here is so no more."""
    newest = process.member.newest_config
    return newest is not None and newest != process.driver.status().config


def _can_win(candidate: Status, others: Sequence[Status]) -> bool:
    """Whether all who are there would elect this one, as far as logs decide."""
    log = (candidate.last_term, candidate.last_index)
    votes = {other.id for other in others if log >= (other.last_term, other.last_index)}
    config = candidate.config
    if candidate.id not in (*config.voters, *config.voters_outgoing):
        return False
    return all(
        len(votes.intersection(half)) > len(half) // 2 for half in (config.voters, config.voters_outgoing) if half
    )
