"""``python -m tests.mutants [NAME-PART ...] [--every N] [--jobs J]``: each fault, in a copy, meets the tests.

Prints the test that found each; ends with ``N passed, M failed`` and exit code 1 when a fault survived.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.planted import ROOT, DoesNotFit, plant, run_on

TIMEOUT_S: Final = 180
_COPIED: Final = ("raft", "chaos", "tests", "kvorum", "store", "docs", "pyproject.toml")


class Verdict(NamedTuple):
    mutant: Mutant
    found_by: str
    """The first test that failed; empty when the fault survived."""
    note: str = ""


def check(mutant: Mutant) -> Verdict:
    """Run a mutant's tests on a copy of the sources with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="kvorum-mutant-") as folder:
        copy = Path(folder) / "main"
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        try:
            plant(mutant, _COPIED, copy)
        except DoesNotFit as reason:
            return Verdict(mutant, "", str(reason))
        return _run(mutant, copy)


def _run(mutant: Mutant, copy: Path) -> Verdict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    try:
        done = run_on(copy, command, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, "", f"no test failed within {TIMEOUT_S} s")
    if done.returncode == 0:
        return Verdict(mutant, "")
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if found is None:
        return Verdict(mutant, "", f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return Verdict(mutant, found[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every Nth")
    parser.add_argument("--jobs", type=int, default=2, help="copies tested at a time")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.names or any(part in m.name for part in args.names)][:: args.every]
    survivors = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for verdict in pool.map(check, chosen):
            survivors += not verdict.found_by
            outcome = f"found by {verdict.found_by}" if verdict.found_by else f"SURVIVED {verdict.note}"
            sys.stdout.write(f"{verdict.mutant.name}: {outcome}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} passed, {survivors} failed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
