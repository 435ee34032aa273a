"""Making a failing run smaller: which of its faults are needed for the same rule to be violated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.sim import plan
from chaos.sim.options import draw
from chaos.sim.plan import Fault
from chaos.sim.run import Report, play

RUNS_MAX: Final = 60
"""Runs that shrinking may take; each is about as long as the first."""


def shrunk(report: Report) -> tuple[Sequence[Fault], Report]:
    """The smallest plan found that still violates the same rule, and what happened under it."""
    options = draw(report.seed)
    faults, best = list(plan.make(report.seed, options)), report
    runs, size = 0, max(1, len(faults) // 2)
    while faults and runs < RUNS_MAX:
        start, reduced = 0, False
        while start < len(faults) and runs < RUNS_MAX:
            tried = faults[:start] + faults[start + size :]
            again = play(report.seed, options, tried)
            runs += 1
            if again.rule == report.rule:
                faults, best, reduced = tried, again, True
            else:
                start += size
        if size > 1:
            size //= 2
        elif not reduced:
            break
    return faults, best
