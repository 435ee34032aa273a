"""What may go wrong in a run, as one frozen value drawn from the seed (swarm testing: every seed its own mix)."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Final

from chaos.sim.streams import stream


@dataclass(frozen=True, slots=True)
class Options:
    """One run. Shares are of 1, times in seconds of virtual time, ``*_per_s`` are mean rates of a fault."""

    members: int = 3
    clients: int = 3
    watchers: int = 2
    keys: int = 4
    duration_s: float = 6.0
    """The time with faults; the run to convergence comes after it."""

    # order and messages
    shuffled: bool = True
    """Callbacks of different members run in a drawn order."""
    encoded: bool = False
    """Messages go through the real encoder and decoder."""

    # network, per directed link
    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    jitter_s: float = 0.002
    tail: float = 0.0
    """Share of frames that are late by up to ``tail_s``."""
    tail_s: float = 0.5
    ordered: bool = True
    """Frames of a link arrive in order, as in a stream; otherwise each travels alone."""
    cut_per_s: float = 0.0
    """Streams that break and lose what is under way."""
    clog_per_s: float = 0.0
    """Links that hold everything back for a while, then deliver it."""
    partition_per_s: float = 0.0

    # processes
    crash_per_s: float = 0.0
    power_loss: float = 0.5
    """Share of crashes that take the machine down and lose what was not synced."""
    pause_per_s: float = 0.0
    slow_per_s: float = 0.0
    restart_s: float = 0.8
    wipe_per_s: float = 0.0

    # disks
    sync_s: float = 0.002
    state_sync_s: float = 0.002
    fail_sync_per_s: float = 0.0
    stall_per_s: float = 0.0
    bit_flip_per_s: float = 0.0

    # clocks
    drift: float = 0.0
    """A member's clock runs faster or slower by up to this share."""
    wall_jump_per_s: float = 0.0

    # operators
    member_change_per_s: float = 0.0
    joint_change_per_s: float = 0.0
    transfer_per_s: float = 0.0
    campaign_per_s: float = 0.0
    depose_per_s: float = 0.0
    """Leaders that are cut off while clients write to them, and come back as their successor crashes."""

    # limits
    election_ticks: int = 5
    tick_s: float = 0.1
    pre_vote: bool = True
    snapshot_count: int = 1000
    catch_up_entries: int = 100
    message_bytes: int = 1 << 20
    inflight_msgs: int = 256
    flush_s: float = 0.2
    history_bytes: int = 1 << 20
    watch_queue: int = 128
    """Answers that wait for a watching client before it counts as slow."""

    # traffic
    think_s: float = 0.12
    compact_share: float = 0.03
    lease_share: float = 0.08
    request_timeout_s: float = 2.0

    @property
    def election_s(self) -> float:
        return self.tick_s * self.election_ticks


_CALM: Final = 0.5
"""Chance that a fault does not occur at all in a run."""


def draw(seed: int) -> Options:
    """The mix of one seed: some runs calm, some with everything, most with a few faults that are frequent."""
    rng = stream(seed, "options")
    maybe = _Maybe(rng)
    return Options(
        members=rng.choice((1, 2, 3, 3, 3, 3, 4, 5)),
        clients=rng.randint(2, 4),
        keys=rng.randint(1, 5),
        duration_s=rng.uniform(2.0, 6.0),
        shuffled=rng.random() < 0.7,
        encoded=rng.random() < 0.3,
        drop=maybe(0.01, 0.2),
        duplicate=maybe(0.01, 0.2),
        delay_s=rng.choice((0.0005, 0.002, 0.01, 0.03)),
        jitter_s=rng.choice((0.0, 0.002, 0.02)),
        tail=maybe(0.01, 0.1),
        tail_s=rng.choice((0.1, 0.5, 2.0)),
        ordered=rng.random() < 0.6,
        cut_per_s=maybe(0.2, 2.0),
        clog_per_s=maybe(0.2, 1.0),
        partition_per_s=maybe(0.2, 1.0),
        crash_per_s=maybe(0.2, 1.5, calm=0.3),
        power_loss=rng.choice((0.0, 0.5, 1.0)),
        pause_per_s=maybe(0.2, 0.8),
        slow_per_s=maybe(0.1, 0.4),
        restart_s=rng.choice((0.2, 0.8, 2.0)),
        wipe_per_s=maybe(0.1, 0.3, calm=0.8),
        sync_s=rng.choice((0.0, 0.001, 0.005, 0.05)),
        state_sync_s=rng.choice((0.0, 0.001, 0.02)),
        fail_sync_per_s=maybe(0.1, 0.3, calm=0.8),
        stall_per_s=maybe(0.1, 0.5, calm=0.7),
        bit_flip_per_s=maybe(0.05, 0.2, calm=0.85),
        drift=maybe(0.02, 0.3),
        wall_jump_per_s=maybe(0.1, 0.5),
        member_change_per_s=maybe(0.3, 1.5),
        joint_change_per_s=maybe(0.3, 1.5, calm=0.7),
        transfer_per_s=maybe(0.2, 1.0),
        campaign_per_s=maybe(0.1, 0.5),
        depose_per_s=maybe(0.2, 0.6),
        election_ticks=rng.choice((3, 4, 5)),
        pre_vote=rng.random() < 0.8,
        snapshot_count=rng.choice((5, 5, 20, 1000)),
        catch_up_entries=rng.choice((0, 0, 3, 10)),
        message_bytes=rng.choice((1, 300, 1 << 20)),
        inflight_msgs=rng.choice((1, 2, 256)),
        flush_s=rng.choice((0.05, 0.3, 1.0)),
        history_bytes=rng.choice((1, 1 << 20)),
        watch_queue=rng.choice((2, 4, 128)),
        think_s=rng.choice((0.02, 0.08, 0.2)),
        compact_share=rng.choice((0.0, 0.03, 0.1)),
        lease_share=rng.choice((0.0, 0.1)),
        request_timeout_s=rng.choice((0.5, 2.0)),
    )


class _Maybe:
    """A value in a range, or with some chance none at all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, low: float, high: float, calm: float = _CALM) -> float:
        value = self._rng.uniform(low, high)
        return 0.0 if self._rng.random() < calm else value


def described(options: Options) -> str:
    """Where a run differs from the defaults, in one line."""
    parts = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            parts.append(f"{field.name}={value:.3g}" if isinstance(value, float) else f"{field.name}={value}")
    return " ".join(parts)
