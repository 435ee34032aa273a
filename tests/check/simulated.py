"""A correct store on one line of time, and clients of it: histories that are right by construction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from chaos.check.etcd_model import EtcdModel
from chaos.check.history import (
    REFUSALS,
    Compact,
    Compare,
    Delete,
    Grant,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Revoke,
    Target,
    Txn,
)


@dataclass
class Simulated:
    """Every operation takes effect at a random point between its call and its return; some answers are lost."""

    random: Random
    clients: int = 5
    keys: tuple[bytes, ...] = (b"a", b"b", b"c")
    lost: float = 0.05
    operations: list[Operation] = field(default_factory=list)

    def run(self, count: int) -> list[Operation]:
        """``count`` operations, in the order in which they took effect."""
        model = EtcdModel(self.keys)
        state, revision = model.empty(), 1
        free = dict.fromkeys(range(self.clients), 0)
        clients, leases = self.clients, [0]
        for moment in range(10, 10 * count + 10, 10):
            client = self.random.choice(sorted(free))
            # calls and returns lie around the moment of effect, and overlap those of other clients
            call = (
                self.random.randint(max(free[client] + 1, moment - 60), moment)
                if free[client] < moment
                else moment
            )
            end = moment + self.random.randint(1, 60)
            if free[client] >= moment:
                continue
            request = self._request(moment, revision, leases)
            lost = self.random.random() < self.lost
            if lost and self.random.random() < 0.5:
                self._note(Operation(client, call, None, request, Outcome.UNKNOWN))  # and never applied
            else:
                state, answer = model.perform(state, request)
                revision = state.revision
                if lost:
                    self._note(Operation(client, call, None, request, Outcome.UNKNOWN))
                elif isinstance(answer, str):
                    assert answer in REFUSALS
                    self._note(Operation(client, call, end, request, Outcome.FAILED, error=answer))
                else:
                    self._note(Operation(client, call, end, request, Outcome.OK, answer))
            if lost:
                del free[client]
                client, clients = clients, clients + 1
            free[client] = end
        return self.operations

    def _note(self, operation: Operation) -> None:
        self.operations.append(operation)

    def _request(self, unique: int, revision: int, leases: list[int]) -> Request:
        pick, key = self.random.random(), self.random.choice(self.keys)
        value = b"%d" % unique
        if pick < 0.3:
            return Range(key)
        if pick < 0.4:
            return Range(self.keys[0], b"\0", limit=self.random.choice((0, 0, 1, 2)))
        if pick < 0.65:
            return Put(key, value, lease=self.random.choice(leases) if self.random.random() < 0.2 else 0)
        if pick < 0.75:
            return Delete(key, self.random.choice((b"", b"", b"\0")))
        if pick < 0.9:
            return self._txn(key, value, revision)
        if pick < 0.94:
            leases.append(unique)
            return Grant(unique, 3600)
        if pick < 0.97:
            return Revoke(self.random.choice(leases))
        return Compact(self.random.randint(1, revision + 1))

    def _txn(self, key: bytes, value: bytes, revision: int) -> Txn:
        other = self.random.choice(self.keys)
        compare = self.random.choice(
            (
                Compare(key, Target.MOD, Relation.EQUAL, self.random.choice((0, revision, max(0, revision - 1)))),
                Compare(key, Target.VERSION, Relation.GREATER, self.random.choice((0, 1, 2))),
                Compare(other, Target.CREATE, Relation.NOT_EQUAL, 0),
                Compare(key, Target.VALUE, Relation.LESS, value),
            )
        )
        extra = (Put(other, value),) if other != key else (Range(key),)
        return Txn(
            (compare,), (Put(key, value), *extra), self.random.choice(((), (Range(key),), (Delete(other),)))
        )


def history(seed: int, count: int = 60, **options: object) -> list[Operation]:
    return Simulated(Random(seed), **options).run(count)  # type: ignore[arg-type]


def renamed(operation: Operation, client: int) -> Operation:
    return replace(operation, client=client)
