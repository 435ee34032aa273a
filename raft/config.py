"""The limits and times of a driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Limits and times of a driver; defaults are etcd's."""

    member_id: int
    tick_s: float = 0.1
    election_ticks: int = 10
    max_size_per_msg_bytes: int = 1 << 20
    max_inflight_msgs: int = 512
    max_uncommitted_bytes: int = 64 << 20
    max_unapplied_entries: int = 5000
    snapshot_count: int = 10_000
    catch_up_entries: int = 5_000
    log_bytes: int = 32 << 20
    """Data of entries kept in memory and in the log for members to catch up with: beyond it fewer entries stay
    than ``catch_up_entries``, and a member that lacks more gets a snapshot."""
    pre_vote: bool = True

    @property
    def election_s(self) -> float:
        return self.tick_s * self.election_ticks

    @property
    def request_timeout_s(self) -> float:
        """etcd: five seconds for the disks, and time for two elections."""
        return 5.0 + 2 * self.election_s
