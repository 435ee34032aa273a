"""Clients of a simulated cluster: sequential, spread over the members, recording what they asked and were told.

A client never repeats a write whose outcome it does not know; it goes on as a new client (checkers §1.1).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import TYPE_CHECKING, Any

from chaos.check import history as h
from chaos.sim import calls
from raft.errors import LeaderChanged, Refused
from store.errors import EtcdError

if TYPE_CHECKING:
    from chaos.sim.member import Process
    from chaos.sim.world import World


class Unavailable(Exception):
    """Nobody serves there: nothing was asked."""


class Unknown(Exception):
    """The request was under way when the time ran out or the connection broke."""


async def ask(
    world: World, number: int, call: Callable[[Process], Coroutine[Any, Any, Any]], timeout_s: float
) -> Any:
    """Send one request to a member and wait for its answer.

    Raises Unavailable when it was not sent, Unknown when nothing is known of it, and what the member answered.
    """
    await asyncio.sleep(world.client_delay())
    process = world.network.processes.get(number)
    if process is None:
        raise Unavailable
    task = process.serve(lambda: call(process), "serve-client")
    try:
        async with asyncio.timeout(timeout_s):
            # A future of our own: a member that is killed cancels its tasks, not its clients.
            await asyncio.wait((task,))
            await asyncio.sleep(world.client_delay())
    except TimeoutError:
        task.cancel()
        raise Unknown("timed out") from None
    if task.cancelled() or not process.port.alive:
        raise Unknown("connection lost")
    return task.result()


class Client:
    """One stream of requests; ``run`` until cancelled."""

    def __init__(self, world: World, rng: random.Random, numbers: count[int]) -> None:
        self._world = world
        self._rng = rng
        self._numbers = numbers
        self._number = next(numbers)
        self._leases: list[int] = []
        self._seen: dict[bytes, int] = {}
        """Key to its mod_revision as last seen, for compare-and-set."""
        self._revision = 1
        self._deleted = 0
        """The revision of this client's last deletion."""
        self._finished = False

    async def run(self) -> None:
        world = self._world
        while not self._finished:
            await asyncio.sleep(self._rng.expovariate(1 / world.options.think_s))
            await self.perform(self._next_request())

    def finish(self) -> None:
        """Ask nothing more than what is under way."""
        self._finished = True

    # -- what to ask --------------------------------------------------------------------------------------

    def _next_request(self) -> h.Request:
        rng, options = self._rng, self._world.options
        roll = rng.random()
        if roll < options.compact_share:
            # Compacting to a deletion is where stores have forgotten it (etcd #18089).
            deleted = self._deleted if rng.random() < 0.5 else 0
            return h.Compact(deleted or max(1, self._revision - rng.randrange(4)))
        roll = rng.random()
        if roll < options.lease_share:
            return self._lease_request()
        roll = rng.random()
        if roll < 0.30:
            return self._range()
        if roll < 0.62:
            lease = rng.choice(self._leases) if self._leases and rng.random() < 0.5 else 0
            return h.Put(self._key(), self._world.unique_value(), lease)
        if roll < 0.72:
            return h.Delete(self._key(), b"z" if rng.random() < 0.1 else b"")
        return self._txn()

    def _key(self) -> bytes:
        return b"k%d" % self._rng.randrange(self._world.options.keys)

    def _range(self) -> h.Range:
        rng = self._rng
        roll = rng.random()
        if roll < 0.15:
            return h.Range(self._key(), serializable=True)
        if roll < 0.3:
            return h.Range(b"k", b"l", revision=max(1, self._revision - rng.randrange(6)))
        if roll < 0.5:
            return h.Range(b"k", b"l", limit=rng.choice((0, 0, 2)))
        return h.Range(self._key())

    def _txn(self) -> h.Txn:
        rng, key = self._rng, self._key()
        compare = h.Compare(key, h.Target.MOD, h.Relation.EQUAL, self._seen.get(key, 0))
        value = self._world.unique_value()
        if rng.random() < 0.6:
            return h.Txn((compare,), (h.Put(key, value),), (h.Range(key),))
        other = self._key()
        success: tuple[h.Action, ...] = (
            (h.Put(key, value), h.Delete(other)) if other != key else (h.Put(key, value),)
        )
        return h.Txn((compare,), success, (h.Range(b"k", b"l"),))

    def _lease_request(self) -> h.Request:
        if self._leases and self._rng.random() < 0.4:
            return h.Revoke(self._leases.pop(self._rng.randrange(len(self._leases))))
        return h.Grant(self._world.unique_lease(), self._rng.choice((1, 2, 600)))

    # -- asking -------------------------------------------------------------------------------------------

    async def perform(self, request: h.Request, number: int | None = None) -> h.Operation:
        """Ask, and record the operation."""
        world = self._world
        member = world.any_member(self._rng) if number is None else number
        call = world.ticks()
        answer, error, outcome = None, "", h.Outcome.OK
        try:
            answer = await ask(
                world, member, lambda process: calls.perform(process, request), world.options.request_timeout_s
            )
        except Unavailable:
            outcome, error = h.Outcome.FAILED, "unavailable"
        except Unknown as unknown:
            outcome, error = h.Outcome.UNKNOWN, str(unknown)
        except EtcdError as refusal:
            outcome, error = _outcome(refusal), refusal.message
        except asyncio.CancelledError:  # the run is over
            world.record(h.Operation(self._number, call, None, request, h.Outcome.UNKNOWN, None, "", f"m{member}"))
            raise
        end = None if outcome is h.Outcome.UNKNOWN else max(world.ticks(), call + 1)
        operation = h.Operation(self._number, call, end, request, outcome, answer, error, f"m{member}")
        world.record(operation)
        if outcome is h.Outcome.UNKNOWN:
            self._number = next(self._numbers)
        if answer is not None:
            self._learn(request, answer)
        return operation

    def _learn(self, request: h.Request, answer: h.Answer) -> None:
        self._revision = max(self._revision, answer.revision)
        if isinstance(request, h.Grant):
            self._leases.append(request.lease)
        result = answer.result
        results = result.results if isinstance(result, h.Chosen) else (result,)
        for each in results:
            if isinstance(each, h.Found):
                self._seen |= {kv.key: kv.mod_revision for kv in each.kvs}
        if isinstance(request, h.Put):
            self._seen[request.key] = answer.revision
        if isinstance(result, h.Deleted) and result.count:
            self._deleted = answer.revision


def _outcome(error: EtcdError) -> h.Outcome:
    """Whether an error of a member says that nothing was or will be changed."""
    if error.message in h.REFUSALS:
        return h.Outcome.FAILED
    if isinstance(error.__cause__, Refused | LeaderChanged):
        return h.Outcome.FAILED
    return h.Outcome.UNKNOWN


Ask = Callable[["Process"], Awaitable[Any]]
