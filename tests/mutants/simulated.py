"""``python -m tests.mutants.simulated [NAME-PART ...] [--jobs J] [--write]``: how many seeds the simulator needs
for each fault that breaks safety. ``--write`` puts the table into docs/reliability.md.

Exit code 1 when a fault survives SEEDS_MAX seeds: then the simulator lacks a fault or an oracle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.planted import ROOT, DoesNotFit, plant, run_on

PAGE: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- simulated mutants: begin, written by make sim-mutants -->"
END: Final = "<!-- simulated mutants: end -->"
SEEDS_MAX: Final = 300
TIMEOUT_S: Final = 900
_COPIED: Final = ("raft", "store", "chaos")

SHARED: Final = (
    "votes do not compare logs",
    "a heartbeat's commit index is not clamped to the match",
    "vote answers leave before they are durable",
    "an older term's entry is committed by counting",
    "two votes in one term",
    "campaigning with an unapplied configuration change",
    "a second configuration change while one is pending",
    "entries are applied before they are stable",
    "M3: every append truncates",
    "M4: the commit index follows the leader beyond the last new entry",
    "M8: reads before an entry of the own term is committed",
    "M10: reads are confirmed by any echo",
    "M45: logs are compared by length before term",
    "a quorum is half",
    "M2: messages leave before the log is synced",
    "M2: term and vote are not written",
    "M36: a failed sync is forgotten",
    "M48: a late reader shares the round under way",
    "M10: a read round's answer is taken whatever it answers",
    "reads are served before their index is applied",
    "M49: a proposal that may be applied is called refused",
)
"""From the catalogue of the unit tests, by name."""

OWN: Final = (
    Mutant(
        "reads without a quorum's word (a lease without a check)", "raft/core/reads.py",
        "elif self.lease_reads or self._is_quorum_by_itself():", "elif True:", (),
    ),
    Mutant(
        "a learner counts in the quorum of commits", "raft/core/tracker.py",
        "return quorum.joint_committed_index(self.config.incoming, self.config.outgoing, acked)",
        "return quorum.joint_committed_index(self.config.incoming | self.config.learners, "
        "self.config.outgoing, acked)", (),
    ),
    Mutant(
        "the outgoing half of a joint configuration does not count", "raft/core/tracker.py",
        "return quorum.joint_committed_index(self.config.incoming, self.config.outgoing, acked)",
        "return quorum.joint_committed_index(self.config.incoming, frozenset(), acked)", (),
    ),
    Mutant(
        "a snapshot is applied backwards", "raft/core/membership.py",
        "if snapshot.index <= self.log.committed:", "if False:", (),
    ),
    Mutant(
        "an entry is applied again after a restart", "raft/driver.py",
        "                applied=applied,\n",
        "                applied=max(applied - 1, loaded.snapshot.index),\n", (),
    ),
    Mutant(
        "the vote is forgotten at a restart", "raft/driver.py",
        "._replace(commit=max(loaded.hard_state.commit, applied))",
        "._replace(vote=0, commit=max(loaded.hard_state.commit, applied))", (),
    ),
    Mutant(
        "M35: the applied index is written in another transaction", "store/machine.py",
        "                await self.backend.commit(lambda: rows_of(versions), (buckets | meta).items())\n",
        "                await self.backend.commit(lambda: (), meta.items())\n"
        "                await self.backend.commit(lambda: rows_of(versions), buckets.items())\n", (),
    ),
    Mutant(
        "the log is truncated below what is only flushed", "store/application.py",
        "        await self._machine.flush()\n        await self._machine.checkpoint()\n",
        "        await self._machine.flush()\n"
        "        self._machine.durable_index = self._machine.flushed_index\n", (),
    ),
    Mutant(
        "a watch that a compaction overtook goes on silently", "store/watch/hub.py",
        "            del self._unsynced[watcher]\n            watcher.outlet.compacted(watcher, compact)\n",
        "            watcher.next_revision = compact + 1\n", (),
    ),
    Mutant(
        "a watcher that falls behind loses a revision", "store/watch/hub.py",
        "        watcher.next_revision = revision\n        self._unsynced",
        "        watcher.next_revision = revision + 1\n        self._unsynced", (),
    ),
    Mutant(
        "a progress notification comes too early", "store/watch/stream.py",
        "if watchers and all(w.synced and w.next_revision <= current + 1 for w in watchers):", "if watchers:", (),
    ),
    Mutant(
        "watchers go back in time after a snapshot", "store/watch/hub.py",
        "watcher.next_revision = max(watcher.next_revision, revision + 1)",
        "watcher.next_revision = min(watcher.next_revision, revision)", (),
    ),
    Mutant(
        "a deletion at the compacted revision is lost", "store/mvcc/index.py",
        "if not newest & 1 or newest >> 1 >= position(revision):", "if not newest & 1:", (),
    ),
    Mutant(
        "the revoke of a lease deletes in an order of its own", "store/apply.py",
        "for key in sorted(lease.keys):", "for key in sorted(lease.keys, key=lambda k: hash((id(self), k))):", (),
    ),
    Mutant(
        "a lease ends before its time", "store/lessor.py",
        "            self._set(lease.id, self._clock() + lease.ttl_s)\n",
        "            self._set(lease.id, self._clock() + lease.ttl_s / 3)\n", (),
    ),
    Mutant(
        "a read does not wait for the read round", "store/api/kv.py",
        "        check_range(request)\n        if not request.serializable:\n"
        "            await self._api.read_barrier()\n        result",
        "        check_range(request)\n        result", (),
    ),
    Mutant(
        "a compaction deletes what is still the newest version", "store/mvcc/index.py",
        "if drop and not (version is not None and version.pos <= last_position(revision)):", "if False:", (),
    ),
    Mutant(
        "a truncated log keeps entries above a rewritten one", "raft/core/storage.py",
        "        self._entries[position:] = entries\n",
        "        self._entries[position : position + len(entries)] = entries\n", (),
    ),
)  # fmt: skip


class Verdict(NamedTuple):
    mutant: Mutant
    seeds: int
    """Seeds played until the fault was found; 0 when it was not."""
    rule: str


def chosen(parts: Sequence[str]) -> list[Mutant]:
    """The mutants whose names contain one of ``parts``; all of them without."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    mutants = [*(by_name[name] for name in SHARED), *OWN]
    return [mutant for mutant in mutants if not parts or any(part in mutant.name for part in parts)]


def hunt(mutant: Mutant) -> Verdict:
    """Play seeds on a copy of the sources with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="kvorum-mutant-") as folder:
        try:
            plant(mutant, _COPIED, Path(folder))
        except DoesNotFit as reason:
            raise SystemExit(f"{mutant.name}: {reason}") from None
        done = run_on(Path(folder), [sys.executable, "-m", "chaos.sim.hunt", "1", str(SEEDS_MAX)], TIMEOUT_S)
    if done.returncode:
        raise SystemExit(f"{mutant.name}: the hunt failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return Verdict(mutant, found["seed"], found["violation"].split("\n")[0]) if found else Verdict(mutant, 0, "")


def table(verdicts: Sequence[Verdict]) -> str:
    lines = ["| fault | in | seeds | what was violated |", "|---|---|---:|---|"]
    for verdict in verdicts:
        rule = verdict.rule.replace("|", "/")
        shown = rule if len(rule) <= 90 else rule[:87] + "..."
        seeds = str(verdict.seeds) if verdict.seeds else f"not in {SEEDS_MAX}"
        lines.append(f"| {verdict.mutant.name} | `{verdict.mutant.file}` | {seeds} | {shown} |")
    return "\n".join(lines)


def write(verdicts: Sequence[Verdict]) -> None:
    """Replace the table between the markers of the page."""
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(verdicts)}\n{END}{rest.split(END)[1]}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.simulated", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME-PART")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    verdicts = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for verdict in pool.map(hunt, chosen(args.names)):
            verdicts.append(verdict)
            found = f"seed {verdict.seeds}: {verdict.rule[:100]}" if verdict.seeds else "SURVIVED"
            sys.stdout.write(f"{verdict.mutant.name}: {found}\n")
            sys.stdout.flush()
    survivors = [verdict for verdict in verdicts if not verdict.seeds]
    sys.stdout.write(f"{len(verdicts) - len(survivors)} found, {len(survivors)} not found in {SEEDS_MAX} seeds\n")
    if args.write and not args.names:
        write(verdicts)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
