"""Nothing that a client sends to any RPC hurts a member."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.store.processes import members

REQUESTS = 1000
KNOWN_TEXTS = ("etcdserver: ", "election: ", '"leader" field must be provided', "auth: ", "mvcc: ")
"""What etcd itself says with the code Unknown."""


async def test_raw_requests_over_every_rpc_leave_the_members_healthy_and_alike(tmp_path: Path) -> None:
    with members(tmp_path, count=3) as cluster:
        campaign = Campaign([member.endpoint for member in cluster], seed=29)
        try:
            async with asyncio.timeout(60):
                await campaign.digests()
                await campaign.run(REQUESTS)
                digests = await campaign.digests()
        finally:
            await campaign.close()
        logs = "".join(member.log.read_text(errors="replace") for member in cluster)
    assert len(set(digests)) == 1
    assert "Traceback" not in logs
    assert campaign.codes["OK"] > REQUESTS / 20, campaign.codes
    ours = [text for text in campaign.unknown if not text.startswith(KNOWN_TEXTS)]
    assert not ours, "an exception of ours reached the client"
