"""``python -m tests.raft.bench_core [--profile]``: what a proposal costs in the core alone.

Three cores in one process, storage in memory, asynchronous storage writes, batches of 64 proposals of 256
bytes. The figure is the CPU time of all three members together, per committed proposal.
"""

from __future__ import annotations

import cProfile
import pstats
import random
import sys
import time
from collections import deque

from raft.core import (
    APPEND_THREAD,
    APPLY_THREAD,
    Config,
    ConfState,
    HardState,
    MemoryStorage,
    Message,
    RawNode,
    Snapshot,
)

BATCH = 64
PAYLOAD = b"x" * 256
COMPACT_EVERY = 20_000


class Cluster:
    """Every message is delivered at once; a write is durable as soon as it is made."""

    def __init__(self, size: int = 3) -> None:
        self.storages = {node: MemoryStorage() for node in range(1, size + 1)}
        state = ConfState(tuple(self.storages))
        self.nodes: dict[int, RawNode] = {}
        self.applied = dict.fromkeys(self.storages, 0)
        for node, storage in self.storages.items():
            storage.apply_snapshot(Snapshot(1, 1, state))
            config = Config(
                id=node, storage=storage, rng=random.Random(node), applied=1, async_storage_writes=True
            )
            self.nodes[node] = RawNode(config)
        self.nodes[1].campaign()
        self.run()

    def run(self) -> None:
        """Until nothing is left to do."""
        busy = True
        while busy:
            busy = False
            for node in self.nodes.values():
                if node.has_ready():
                    busy = True
                    self._handle(node)

    def _handle(self, node: RawNode) -> None:
        responses: deque[Message] = deque()
        for message in node.ready().messages:
            if message.to == APPEND_THREAD:
                self._write(node.id, message)
                responses += message.responses
            elif message.to == APPLY_THREAD:
                self.applied[node.id] = message.entries[-1].index
                responses += message.responses
            else:
                self.nodes[message.to].step(message)
        for response in responses:
            self.nodes[response.to].step(response)

    def _write(self, node: int, message: Message) -> None:
        storage = self.storages[node]
        if message.term:
            storage.set_hard_state(HardState(message.term, message.vote, message.commit))
        storage.append(message.entries)

    def compact(self) -> None:
        for node, storage in self.storages.items():
            storage.compact(self.applied[node] - BATCH)


def measure(proposals: int) -> float:
    """CPU seconds per committed proposal."""
    cluster = Cluster()
    leader, batch = cluster.nodes[1], [PAYLOAD] * BATCH
    started = time.process_time()
    for count in range(0, proposals, BATCH):
        leader.propose_batch(batch)
        cluster.run()
        if count % COMPACT_EVERY < BATCH and count:
            cluster.compact()
    elapsed = time.process_time() - started
    if leader.commit < proposals or set(cluster.applied.values()) != {leader.commit}:
        raise RuntimeError("not everything was committed and applied")
    return elapsed / proposals


def main() -> None:
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        profile.runcall(measure, 64_000)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(25)
        return
    best = min(measure(128_000) for _ in range(3))
    sys.stdout.write(f"{best * 1e6:.2f} us of CPU per proposal, three members together, batches of {BATCH}\n")


if __name__ == "__main__":
    main()
