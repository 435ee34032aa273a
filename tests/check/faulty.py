"""``python -m tests.check.faulty [NAME-PART ...]``: faulty members, as processes, meet ``kvorum check run``.

Every fault is a bug that etcd or another store has had (checkers contract §3). For each, the sources are copied,
the fault is put in, and a short run must end with "illegal" and name the right promise. Without a fault it must
end with "ok".
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.planted import DoesNotFit, plant, run_on

DURATION_S: Final = 20
TIMEOUT_S: Final = 150
_COPIED: Final = ("raft", "store", "watchcache", "apiserver_adapter", "chaos", "kvorum")


class Fault(NamedTuple):
    """One of ``promises`` must be in the report as broken."""

    name: str
    file: str
    find: str
    replace: str
    promises: tuple[str, ...]
    nemesis: str = "pause"


FAULTS: Final = (
    Fault("none", "store/watch/hub.py", "class WatchHub:", "class WatchHub:", ("ok",), "kill,pause"),
    Fault(
        "linearizable reads are served from the member's own state", "store/api/kv.py",
        "        if not request.serializable:\n            await self._api.read_barrier()\n        result",
        "        result", ("not linearizable",),
    ),
    Fault(
        "a watch from a compacted revision silently begins later", "store/watch/hub.py",
        "            del self._unsynced[watcher]\n            watcher.outlet.compacted(watcher, compact)",
        "            watcher.next_revision = compact", ("stale start",),
    ),
    Fault(
        "progress is notified before the stream has caught up", "store/watch/stream.py",
        "if watchers and all(w.synced and w.next_revision <= current + 1 for w in watchers):", "if watchers:",
        ("bookmarkable", "future start"),
    ),
    Fault(
        "live events are delivered twice", "store/watch/hub.py",
        "matched[watcher] = [event]", "matched[watcher] = [event, event]", ("unique",),
    ),
    Fault(
        "a watch from the newest revision misses it", "store/watch/hub.py",
        "if watcher.next_revision > self._source.revision:", "if watcher.next_revision >= self._source.revision:",
        ("resumable", "reliable"),
    ),
    Fault(
        "filters are forgotten in the live stream", "store/watch/hub.py",
        "if revision >= watcher.next_revision and watcher.wants(event):", "if revision >= watcher.next_revision:",
        ("filter",),
    ),
    Fault(
        "a start in the future gets what comes before", "store/watch/hub.py",
        "if revision >= watcher.next_revision and watcher.wants(event):", "if watcher.wants(event):",
        ("future start",),
    ),
)  # fmt: skip


def report_of(fault: Fault, folder: Path) -> str:
    """Run the checker on members with the fault in them; what it printed."""
    copy = folder / "main"
    try:
        plant(fault, _COPIED, copy)
    except DoesNotFit as reason:
        raise SystemExit(f"{fault.name}: {reason}") from None
    command = [sys.executable, "-m", "kvorum", "check", "run", "--duration", str(DURATION_S), "--seed", "11",
               "--nemesis", fault.nemesis, "--out", str(folder / "out")]  # fmt: skip
    done = run_on(copy, command, TIMEOUT_S)
    return done.stdout + done.stderr


def main() -> int:
    survivors = 0
    chosen = [fault for fault in FAULTS if not sys.argv[1:] or any(part in fault.name for part in sys.argv[1:])]
    for fault in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kvorum-faulty-") as folder:
            report = report_of(fault, Path(folder))
        found = [promise for promise in fault.promises if f": {promise}" in report]
        survivors += not found
        outcome = f"found: {', '.join(found)}" if found else f"NOT FOUND\n{report[-1500:]}"
        sys.stdout.write(f"{fault.name}: {outcome} ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} passed, {survivors} failed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
