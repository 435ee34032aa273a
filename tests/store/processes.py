"""Members as processes with flags of the test's choice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_base

STOP_TIMEOUT_S = 10.0


class Member:
    """One member of ``cluster``, which can be stopped and started again."""

    def __init__(self, name: str, port: int, initial: str, directory: Path, flags: tuple[str, ...]) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self.data_dir = directory / name
        self.log = directory / f"{name}.log"
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
        self._command = [
            sys.executable, "-m", "kvorum", "member", "--name", name, "--data-dir", str(self.data_dir),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", initial, "--initial-cluster-token", "drill", *flags,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def state_db(self) -> Path:
        return self.data_dir / "member" / "state.db"

    def start(self, *flags: str) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, *flags], stderr=log)

    def wait(self) -> int:
        """Its exit code, once it ends by itself."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def members(directory: Path, *flags: str, count: int = 3) -> Iterator[list[Member]]:
    """A running cluster; with the logs of its members shown when the test fails."""
    base = free_base(2 * count)
    ports = [base + 2 * i for i in range(count)]
    initial = ",".join(f"m{i}=http://127.0.0.1:{port + 1}" for i, port in enumerate(ports))
    made = [Member(f"m{i}", port, initial, directory, flags) for i, port in enumerate(ports)]
    try:
        for member in made:
            member.start()
        yield made
    finally:
        for member in made:
            member.stop()
            sys.stderr.write(member.log.read_text(errors="replace")[-2000:])
