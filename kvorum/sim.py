"""``kvorum sim``: whole clusters in simulation, one seed after another, and the replay of one as a picture."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from chaos.sim.options import described, draw
from chaos.sim.run import Report, play, play_world
from chaos.sim.shrink import shrunk
from chaos.sim.situations import never_reached
from chaos.sim.standstill import EXCUSES
from kvorum.layout import UsageError, UserError
from kvorum.numbers import real, whole

SEEDS_MAX: Final = 1 << 40
JOBS_MAX: Final = 256
DEFAULT_SEEDS: Final = range(1, 501)
CHUNK: Final = 5
"""Seeds that a worker takes at a time."""
CHECKED_TWICE: Final = 8
"""Seeds of a batch that are run again, in another process with other string hashes."""
VIOLATIONS_SHOWN: Final = 5
PROGRESS_S: Final = 1.0
SITUATIONS_FROM: Final = 200
"""With fewer seeds it says little that something was not reached."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds", type=_seeds, default=DEFAULT_SEEDS, metavar="A..B", help="which runs, both included (1..500)"
    )
    parser.add_argument("--minutes", type=_minutes, metavar="M", help="stop after so many minutes")
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="J", help="processes that run seeds")
    parser.add_argument("--replay", type=_seed, metavar="SEED", help="run this seed once and tell what happened")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="with --replay: write the timeline as HTML")


def _seed(text: str) -> int:
    return whole(text, f"a seed (0 to {SEEDS_MAX - 1})", 0, SEEDS_MAX - 1)


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots:
        return range(_seed(text), _seed(text) + 1)
    seeds = range(_seed(first), _seed(last) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed: write the smaller number first")
    return seeds


def _jobs(text: str) -> int:
    return whole(text, f"a number of processes (1 to {JOBS_MAX})", 1, JOBS_MAX)


def _minutes(text: str) -> float:
    return real(text, "a positive number of minutes", below=1e6)


def run(args: argparse.Namespace) -> int:
    if args.trace is not None and args.replay is None:
        raise UsageError("--trace needs --replay SEED")
    if args.replay is not None:
        return _replay(args.replay, args.trace)
    return _batch(args)


# -- one seed ---------------------------------------------------------------------------------------------


def _replay(seed: int, target: Path | None) -> int:
    report, world = play_world(seed)
    print(f"seed {seed}: {described(draw(seed)) or 'a calm run'}")
    print(
        f"  {report.virtual_s:.1f} s of virtual time, {report.callbacks} callbacks, "
        f"{report.operations} operations, hash {report.hash:08x}"
    )
    if target is not None:
        from chaos.sim.timeline import html

        try:
            target.write_text(html(world, report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{target}: {(error.strerror or str(error)).lower()}") from error
        print(f"  timeline: {target}")
    if not report.violation:
        print("; ".join(("  no violation", *(reason for reason in EXCUSES if report.reached[reason]))))
        return 0
    _show(report)
    return 1


def _show(report: Report) -> None:
    """A violation: what it is, which faults it needs, what happened just before."""
    print(f"seed {report.seed}: VIOLATED {report.violation}")
    faults, smaller = shrunk(report)
    print(f"  {len(faults)} faults are enough:" if faults else "  no fault is needed:")
    for fault in faults:
        print(f"    {fault.at:9.4f}  {fault.kind}")
    print("  the last events of the run with them:")
    for record in smaller.tail:
        sender = f" from m{record.peer}" if record.peer else ""
        who = f"m{record.node}" if record.node else "--"
        print(f"    {record.at:9.4f}  {who:4} {record.kind}{sender}: {record.text[:150]}")
    print(f"  replay: kvorum sim --replay {report.seed} --trace seed-{report.seed}.html", flush=True)


# -- many seeds -------------------------------------------------------------------------------------------


@dataclass
class _Tally:
    done: int = 0
    virtual_s: float = 0.0
    violations: list[Report] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    hashes: dict[int, int] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        self.done += 1
        self.virtual_s += report.virtual_s
        self.reached.update(report.reached)
        self.hashes[report.seed] = report.hash
        if report.violation:
            self.violations.append(report)


def _play_all(seeds: list[int]) -> list[Report]:
    return [play(seed) for seed in seeds]


def _batch(args: argparse.Namespace) -> int:
    seeds: range = args.seeds
    started = time.monotonic()
    until = None if args.minutes is None else started + 60 * args.minutes
    tally = _Tally()
    progress = _Progress(tally, len(seeds))
    for report in _reports(seeds, args.jobs, until, progress.tick):
        tally.add(report)
        progress.tick()
        if report.violation:
            progress.clear()
            _say_violation(report, len(tally.violations))
    progress.clear()
    took = time.monotonic() - started
    unlike = _unlike(tally)
    print(
        f"{tally.done} seeds ({seeds.start} to {seeds.start + tally.done - 1}), "
        f"{tally.virtual_s / 60:.0f} minutes of virtual time in {took:.0f} s: {len(tally.violations)} violations"
    )
    for reason in EXCUSES:
        if tally.reached[reason]:
            print(f"{reason}: {tally.reached[reason]} seeds")
    if tally.done >= SITUATIONS_FROM:
        missing = never_reached(tally.reached)
        print("never reached: " + ("; ".join(missing) if missing else "nothing of what is expected"))
    if unlike:
        print(f"NOT DETERMINISTIC: seeds {unlike} came out differently in a second run")
    elif tally.done:
        print(
            f"{min(CHECKED_TWICE, tally.done)} seeds run twice, with other string hashes: the same to the last "
            "event"
        )
    return 1 if tally.violations or unlike else 0


def _say_violation(report: Report, number: int) -> None:
    if number <= VIOLATIONS_SHOWN:
        _show(report)
    else:
        print(f"seed {report.seed}: VIOLATED {report.rule} (kvorum sim --replay {report.seed})", flush=True)


def _reports(seeds: range, jobs: int, until: float | None, tick: Callable[[], None]) -> Iterator[Report]:
    """The reports of all seeds, in order for one job, as they come for several; ends early at ``until``."""

    def over() -> bool:
        return until is not None and time.monotonic() >= until

    if jobs == 1:
        for seed in seeds:
            if over():
                return
            yield play(seed)
        return
    rest = iter(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        under_way: set[Future[list[Report]]] = set()
        while True:
            while len(under_way) < 2 * jobs and not over() and (chunk := list(islice(rest, CHUNK))):
                under_way.add(pool.submit(_play_all, chunk))
            if not under_way:
                return
            done, under_way = wait(under_way, timeout=PROGRESS_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
            tick()


class _Progress:
    """A line that is rewritten on a terminal, and written anew now and then elsewhere."""

    def __init__(self, tally: _Tally, total: int) -> None:
        self._tally = tally
        self._total = total
        self._started = self._last = time.monotonic()
        self._live = sys.stderr.isatty()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._last < (PROGRESS_S if self._live else 20 * PROGRESS_S):
            return
        self._last = now
        tally = self._tally
        line = (
            f"{tally.done} of {self._total} seeds, {tally.done / (now - self._started):.1f} a second, "
            f"{len(tally.violations)} violations"
        )
        print(
            f"\r\x1b[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True
        )

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _unlike(tally: _Tally) -> list[int]:
    """Seeds that come out differently in a process with other string hashes."""
    if not tally.hashes:
        return []
    seeds = sorted(tally.hashes)
    sample = seeds[:: max(1, len(seeds) // CHECKED_TWICE)][:CHECKED_TWICE]
    own = os.environ.get("PYTHONHASHSEED", "")
    environment = {**os.environ, "PYTHONHASHSEED": "1" if own != "1" else "2"}
    command = [sys.executable, "-P", "-m", "chaos.sim.rehash", *map(str, sample)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        last: list[Any] = result.stderr.strip().splitlines()[-1:]
        raise UserError(f"the second run of seeds {sample} failed: {last}")
    again = {int(seed): int(value, 16) for seed, value in map(str.split, result.stdout.splitlines())}
    return [seed for seed in sample if again[seed] != tally.hashes[seed]]
