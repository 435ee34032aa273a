"""The parameters of a node (contract §1)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .errors import ConfigError
from .readonly import ReadOnlyOption
from .sizes import NO_LIMIT
from .storage import Storage
from .trace import TraceCallback
from .types import APPLY_THREAD


@dataclass(kw_only=True)
class Config:
    """Everything a core is made from. Sizes are bytes, times are ticks."""

    id: int
    """Not 0, and used by one node for all time: never again after it was removed."""
    storage: Storage
    rng: Random
    """Draws the election timeouts, so that a seed fixes them."""
    election_tick: int = 10
    """Ticks without a leader before an election; at least ten heartbeats are advisable."""
    heartbeat_tick: int = 1
    applied: int = 0
    """What the state machine durably contains. Too small applies entries again, too large loses them."""
    async_storage_writes: bool = False
    """Writes and applies go out as messages to storage threads, and ``advance`` is not called (§17)."""
    max_size_per_msg: int = 1 << 20
    """Bytes of entries in one append; 0 sends one entry per message."""
    max_committed_size_per_ready: int = 0
    """Bytes handed out for apply and not acknowledged; 0 means the same as ``max_size_per_msg``."""
    max_uncommitted_entries_size: int = 0
    """Bytes of proposals a leader holds before they are applied; 0 is without limit."""
    max_inflight_msgs: int = 512
    """Appends a follower may be behind with its acknowledgements."""
    max_inflight_bytes: int = 0
    """The same in bytes of data; 0 is without limit."""
    check_quorum: bool = True
    """A leader steps down when it hears no quorum, and followers of a live leader refuse elections."""
    pre_vote: bool = True
    """Ask whether an election could be won before raising the term (thesis §9.6)."""
    read_only: ReadOnlyOption = ReadOnlyOption.SAFE
    disable_proposal_forwarding: bool = False
    disable_conf_change_validation: bool = False
    """Accept configuration changes that do not fit; only for applications that order them otherwise."""
    step_down_on_removal: bool = False
    """A leader that is removed or demoted becomes a follower at once."""
    commit_notices: bool = False
    """Tell followers a new commit index without asking for an answer, where they were sent everything else: a
    quarter fewer messages for a write. etcd has every append answered. Followers understand both."""
    trace: TraceCallback | None = None

    def validate(self) -> None:
        """Raise ConfigError, in one sentence, for the first parameter out of range."""
        complaints = (
            (0 < self.id < APPLY_THREAD, "id must be a 64-bit number that is not 0 and not reserved"),
            (self.heartbeat_tick > 0, "heartbeat_tick must be greater than 0"),
            (self.election_tick > self.heartbeat_tick, "election_tick must be greater than heartbeat_tick"),
            (self.applied >= 0, "applied must not be negative"),
            (self.max_size_per_msg >= 0, "max_size_per_msg must not be negative"),
            (self.max_committed_size_per_ready >= 0, "max_committed_size_per_ready must not be negative"),
            (self.max_uncommitted_entries_size >= 0, "max_uncommitted_entries_size must not be negative"),
            (self.max_inflight_msgs > 0, "max_inflight_msgs must be greater than 0"),
            (
                self.max_inflight_bytes == 0 or self.max_inflight_bytes >= self.max_size_per_msg,
                "max_inflight_bytes must be 0 or at least max_size_per_msg",
            ),
            (
                self.read_only != ReadOnlyOption.LEASE_BASED or self.check_quorum,
                "check_quorum must be on when read_only is lease based",
            ),
        )
        for holds, complaint in complaints:
            if not holds:
                raise ConfigError(complaint)

    @property
    def applying_limit(self) -> int:
        """Bytes that may be outstanding for apply."""
        return self.max_committed_size_per_ready or self.max_size_per_msg or 1

    @property
    def uncommitted_limit(self) -> int:
        return self.max_uncommitted_entries_size or NO_LIMIT
