"""Every answer of a random stream of operations is etcd's own, and so are the watch histories and HashKV."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.differential.compare import compare
from tests.differential.servers import pair

OPERATIONS = 2000


async def test_a_random_stream_of_operations_gets_etcds_answers(tmp_path: Path) -> None:
    with pair(tmp_path) as (ours, theirs):
        summary = await asyncio.to_thread(compare, ours, theirs, 20261, OPERATIONS)
    assert summary.operations == OPERATIONS
    # A stream in which most things are refused would prove little.
    answered = sum(count for name, count in summary.outcomes.items() if name.endswith(" ok"))
    assert answered > OPERATIONS * 0.6
    assert summary.compacted > 1
    assert summary.events >= summary.revision - 1  # every revision has at least one
