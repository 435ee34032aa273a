"""``python -m tests.fuzz --requests 100000 --seed 1``: the long run against three members, with progress."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.store.processes import Member, members

SHOWN_CHARACTERS = 6000


async def run(cluster: list[Member], requests: int, seed: int) -> int:
    campaign = Campaign([member.endpoint for member in cluster], seed)
    began = time.monotonic()
    try:
        await campaign.digests()
        await campaign.run(
            requests, lambda sent: print(f"\r{sent} of {requests}", end="", file=sys.stderr, flush=True)
        )
        digests = await campaign.digests()
    finally:
        await campaign.close()
    print(f"\n{campaign.sent} requests in {time.monotonic() - began:.0f} s: {dict(campaign.codes)}")
    print(f"texts of UNKNOWN: {campaign.unknown.most_common(20)}")
    print(f"(revision, hash) of the members: {digests}")
    logs = "".join(member.log.read_text(errors="replace") for member in cluster)
    tracebacks = logs.count("Traceback")
    print(f"tracebacks in their logs: {tracebacks}")
    if tracebacks:
        print(logs[max(0, logs.index("Traceback") - 500) :][:SHOWN_CHARACTERS])
    return 0 if len(set(digests)) == 1 and not tracebacks else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, members(Path(folder), count=3) as cluster:
        return asyncio.run(run(cluster, args.requests, args.seed))


if __name__ == "__main__":
    sys.exit(main())
