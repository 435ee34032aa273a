"""``python -m chaos.sim.hunt FIRST LAST``: play seeds until one violates something, and print which and what."""

from __future__ import annotations

import json
import sys

from chaos.sim.run import play

if __name__ == "__main__":
    _first, _last = map(int, sys.argv[1:])
    _found: dict[str, object] = {}
    for _seed in range(_first, _last + 1):
        _report = play(_seed)
        if _report.violation:
            _found = {"seed": _seed, "violation": _report.violation[:400]}
            break
    sys.stdout.write(json.dumps(_found) + "\n")
