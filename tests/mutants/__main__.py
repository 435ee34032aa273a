"""``python -m tests.mutants [NAME-PART ...] [--every N] [--jobs J]``: each fault, in a copy, meets the tests.

Prints the test that found each; ends with ``N passed, M failed`` and exit code 1 when a fault survived.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
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
        copy.mkdir()
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        path = copy / mutant.file
        text = path.read_text()
        if text.count(mutant.find) != 1:
            return Verdict(
                mutant, "", f"the text to replace occurs {text.count(mutant.find)} times in {mutant.file}"
            )
        path.write_text(text.replace(mutant.find, mutant.replace))
        return _run(mutant, copy)


def _run(mutant: Mutant, copy: Path) -> Verdict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Verdict(mutant, f"no test ended within {TIMEOUT_S} s")
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
