"""``python -m chaos.sim.rehash SEED ...``: the running hash of each seed, to compare across processes."""

from __future__ import annotations

import sys

from chaos.sim.run import play

if __name__ == "__main__":
    for _seed in map(int, sys.argv[1:]):
        sys.stdout.write(f"{_seed} {play(_seed).hash:08x}\n")
