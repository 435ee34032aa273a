"""What the driver, the log and the transport report. The core has its own errors in raft.core.errors.

Three families: the caller asked for something impossible now (refused: nothing happened), the outcome is
unknown (it may still happen), and this process cannot go on (fatal).
"""

from __future__ import annotations

from pathlib import Path

from raft.core.errors import RaftError as RaftError  # one root for the core and for what is around it


class Refused(RaftError):
    """The request was not taken: nothing was or will be changed by it."""


class NotLeader(Refused):
    """Only the leader can do this."""


class NoLeader(Refused):
    """No leader is known, so nothing was proposed or asked."""


class LeaderChanged(Refused):
    """A new leader appeared while a read waited: ask again."""


class Overloaded(Refused):
    """Too much is committed and not yet applied; try again later."""


class ConfChangeRefused(Refused):
    """A configuration change was not made: another one is pending, or the core or the application said no."""


class Stopped(Refused):
    """The driver is shutting down."""


class OutcomeUnknown(RaftError):
    """The time ran out, or the driver stopped, after a proposal left: it may still be applied."""


class FatalError(RaftError):
    """The process must end: what is on disk is unknown, or an invariant is broken."""


class LogError(FatalError):
    """The log on disk cannot be used. The message names the file, the problem and what to do."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path


class SyncFailed(LogError):
    """A write or fsync of the log failed. Never retried: the state of the dirty pages is unknown (M36)."""

    def __init__(self, path: Path, cause: BaseException) -> None:
        super().__init__(
            path,
            f"writing the raft log failed ({cause})",
            "this member stops, since what it wrote may be lost; free or replace the disk and start it again",
        )


class CodecError(RaftError):
    """Bytes from a peer are not a frame of ours."""


class RemovedError(ConnectionRefusedError):
    """A peer says that this member was removed from the cluster."""
