"""Putting a deliberate fault into a copy of the sources, and running something on that copy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

ROOT: Final = Path(__file__).resolve().parents[2]


class Planted(Protocol):
    """A fault: ``find``, which must occur exactly once in ``file``, and what it is replaced by."""

    @property
    def file(self) -> str: ...
    @property
    def find(self) -> str: ...
    @property
    def replace(self) -> str: ...


class DoesNotFit(Exception):
    """The text to replace does not occur exactly once: the sources have changed since the fault was written."""


def plant(fault: Planted, names: Iterable[str], copy: Path) -> None:
    """Copy the files and folders ``names`` into ``copy`` with the fault in them. Raises DoesNotFit."""
    copy.mkdir(exist_ok=True)
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    path = copy / fault.file
    text = path.read_text()
    if text.count(fault.find) != 1:
        raise DoesNotFit(f"the text to replace occurs {text.count(fault.find)} times in {fault.file}")
    path.write_text(text.replace(fault.find, fault.replace))


def run_on(copy: Path, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run ``command`` where it imports the copy. Raises subprocess.TimeoutExpired."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
