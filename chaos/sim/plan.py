"""The faults of a run as a list, made before the run: what, when, to whom.

``where`` numbers are drawn in advance and name a member (or a link) by its place among those that exist when the
fault happens, so removing one fault from the list does not change the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from chaos.sim.options import Options
from chaos.sim.streams import stream


class Fault(NamedTuple):
    at: float
    kind: str
    where: float
    """In [0, 1): which member."""
    other: float
    """In [0, 1): which other member, or which variant."""
    size: float
    """In [0, 1): how long, how far."""


RATES: Final = {
    "crash": "crash_per_s",
    "pause": "pause_per_s",
    "slow": "slow_per_s",
    "partition": "partition_per_s",
    "cut": "cut_per_s",
    "clog": "clog_per_s",
    "wipe": "wipe_per_s",
    "fail-sync": "fail_sync_per_s",
    "stall": "stall_per_s",
    "bit-flip": "bit_flip_per_s",
    "wall-jump": "wall_jump_per_s",
    "member-change": "member_change_per_s",
    "joint-change": "joint_change_per_s",
    "transfer": "transfer_per_s",
    "campaign": "campaign_per_s",
    "depose": "depose_per_s",
}
"""Kind of fault to the option that says how often it happens."""


def make(seed: int, options: Options) -> Sequence[Fault]:
    """The faults of a seed in order of time; each kind has its own stream."""
    plan: list[Fault] = []
    for kind, option in RATES.items():
        rate = getattr(options, option)
        rng = stream(seed, "faults", kind)
        at = 0.0
        while rate > 0:
            at += rng.expovariate(rate)
            if at > options.duration_s:
                break
            plan.append(Fault(at, kind, rng.random(), rng.random(), rng.random()))
    return sorted(plan)
