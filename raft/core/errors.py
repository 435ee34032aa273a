"""What can go wrong, in two families, and one class for what must never happen.

``CallerError``: the program that drives the core misused it, or asked for something the core may refuse. The
caller corrects itself or tells its own client. ``FaultError``: a peer, the disk or the position of the log made
the request impossible; it says nothing bad about the caller. ``InvariantViolation`` is neither: a safety rule
would have been broken, the state of this process cannot be trusted, and the driver must end it.
"""

from __future__ import annotations

from enum import StrEnum


class RaftError(Exception):
    """The root of everything the core raises on purpose. Never raised itself."""


class CallerError(RaftError):
    """The caller misused the core, or its request was refused. Never raised itself."""


class FaultError(RaftError):
    """A peer, the disk or the state of the log made this impossible. Never raised itself."""


class InvariantViolation(RaftError):
    """An assertion of the protocol failed (contract §19): stop the process, do not go on with this state."""


# --- misuse and refusals ---------------------------------------------------------------------------------


class ConfigError(CallerError, ValueError):
    """A parameter of ``Config`` is out of its range; the message is one sentence that names it."""


class StepLocalMessage(CallerError):
    """A message type that only a node makes for itself was stepped from outside (contract §2)."""


class NotReadyToAdvance(CallerError):
    """``advance`` was called with async storage writes, or without a Ready taken before it."""


class ConfChangeProblem(StrEnum):
    """Why a configuration change does not fit; the value is the sentence shown."""

    ALREADY_JOINT = "the configuration is joint already"
    NOT_JOINT = "a configuration that is not joint cannot be left"
    SIMPLE_IN_JOINT = "a simple change cannot be made in a joint configuration"
    NO_VOTERS = "a configuration without voters cannot become joint"
    REMOVES_ALL_VOTERS = "a change cannot remove all voters"
    MORE_THAN_ONE_VOTER = "more than one voter changed without entering a joint configuration"
    UNREACHABLE = "no sequence of changes leads to this configuration"
    TOO_MANY_CHANGES = "more changes at once than an entry can hold"


class ConfChangeError(CallerError):
    """A configuration change does not fit the configuration it is applied to (contract §14)."""

    def __init__(self, problem: ConfChangeProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class DropReason(StrEnum):
    """Why a proposal was not accepted (contract §11). Nothing was appended: it is safe to try again."""

    NO_LEADER = "no_leader"
    FORWARDING_DISABLED = "forwarding_disabled"
    NOT_IN_CONFIG = "not_in_config"
    TRANSFERRING = "transferring"
    UNCOMMITTED_LIMIT = "uncommitted_limit"


class ProposalDropped(CallerError):
    """A proposal was refused before it reached any log."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__(f"proposal dropped: {reason.value.replace('_', ' ')}")
        self.reason = reason


# --- peers, disk, log positions --------------------------------------------------------------------------


class StepPeerNotFound(FaultError):
    """A response came from a node that is not in the configuration, most often one just removed."""


class MalformedMessage(FaultError):
    """A message contradicts itself; it was ignored as a whole."""


class Compacted(FaultError):
    """The position is older than the first entry of the log: a snapshot covers it."""


class Unavailable(FaultError):
    """The position is beyond the last entry of the log."""


class SnapshotOutOfDate(FaultError):
    """The snapshot is older than the one the storage already has."""


class SnapshotTemporarilyUnavailable(FaultError):
    """The storage cannot produce a snapshot just now; the core asks again later."""
