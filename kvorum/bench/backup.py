"""Saving a snapshot of many keys and restoring it, with each system's own tools."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvorum.bench.systems import ETCD, System, end, find_tool
from kvorum.layout import UserError

ROUNDS: Final = 3
_TIMEOUT_S: Final = 300.0


def _commands(system: System, file: Path, target: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The command lines that save and restore."""
    endpoint = f"127.0.0.1:{system.ports[0]}"
    if system.kind == ETCD:
        save, restore = [find_tool("etcdctl")], [find_tool("etcdutl")]
    else:
        save = restore = [sys.executable, "-P", "-m", "kvorum"]
    return (
        [*save, "snapshot", "save", str(file), "--endpoints", endpoint],
        [*restore, "snapshot", "restore", str(file), "--data-dir", str(target)],
    )


async def _timed(command: Sequence[str]) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, errors = await process.communicate()
    except BaseException:
        await end(process)
        raise
    if process.returncode:
        raise UserError(f"{command[0]}: {errors.decode(errors='replace').strip()[-200:]}")
    return time.perf_counter() - began


async def save_and_restore(system: System) -> tuple[float, float]:
    """Seconds to save what ``system`` holds, and to restore it: medians of a few rounds."""
    saves, restores = [], []
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-") as folder:
        for number in range(ROUNDS):
            file = Path(folder) / f"{number}.db"
            save, restore = _commands(system, file, Path(folder) / f"restored-{number}")
            saves.append(await _timed(save))
            restores.append(await _timed(restore))
    return statistics.median(saves), statistics.median(restores)
