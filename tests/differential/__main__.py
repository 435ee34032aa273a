"""``python -m tests.differential --operations 20000 --seed 1``: the long run, with progress."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.differential.compare import Differs, compare
from tests.differential.servers import pair


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pair(Path(folder)) as (ours, theirs):
        try:
            summary = compare(
                ours, theirs, args.seed, args.operations,
                lambda done: print(f"\r{done} of {args.operations}", end="", file=sys.stderr, flush=True),
            )  # fmt: skip
        except Differs as difference:
            print(f"\nseed {args.seed}: {difference}")
            return 1
    print()
    for outcome, count in sorted(summary.outcomes.items()):
        print(f"{count:7} {outcome}")
    print(f"{summary.operations} operations alike, and {summary.events} events of 3 watches up to revision "
          f"{summary.revision}, compacted at {summary.compacted}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
