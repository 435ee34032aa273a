"""``python -m tests.cases.fresh DIRECTORY PORT``: leave one fresh, empty member serving PORT ("stop": none)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GONE_S = 10.0


def stop(directory: Path) -> None:
    """Kill the member of ``directory``, if it has one, and what it left."""
    file = directory / "pid"
    if file.exists():
        pid = int(file.read_text())
        deadline = time.monotonic() + GONE_S
        try:
            os.kill(pid, signal.SIGKILL)
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.01)  # a process that is not our child tells nobody of its end
        except ProcessLookupError:
            file.unlink()
    shutil.rmtree(directory, ignore_errors=True)


def start(directory: Path, port: int) -> None:
    directory.mkdir(parents=True)
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    command = [
        sys.executable, "-m", "kvorum", "member", "--name", "fresh", "--data-dir", str(directory / "data"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"fresh={peer}",
    ]  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (directory / "pid").write_text(str(process.pid))


if __name__ == "__main__":
    stop(Path(sys.argv[1]))
    if sys.argv[2] != "stop":
        start(Path(sys.argv[1]), int(sys.argv[2]))
