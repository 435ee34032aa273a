"""What etcdctl prints against a follower of ours is what it printed against etcd 3.5.1."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cases.runner import FOLDER, case_ids, on_follower, selected

SAMPLE = 12
"""Every twelfth case here; all of them with ``make cases``."""


async def test_recorded_cases_of_etcdctl(tmp_path: Path) -> None:
    if not FOLDER.exists():
        pytest.skip("the recorded cases are not beside this checkout")
    cases = selected(tmp_path, case_ids()[::SAMPLE])
    done = await asyncio.to_thread(on_follower, tmp_path, cases)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
