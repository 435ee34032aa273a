"""A correct store on one line of time, and clients of it: histories that are right by construction.

``whole_history`` has watches and stale reads of members that lag in it, and answers whose headers are later than
what they answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from chaos.check.etcd_model import EtcdModel, State
from chaos.check.history import (
    COMPACTED,
    FUTURE_REVISION,
    REFUSALS,
    Answer,
    Compact,
    Compare,
    Delete,
    Event,
    Grant,
    History,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Revoke,
    Setting,
    Target,
    Txn,
    Watch,
    WatchRequest,
    WatchResponse,
)
from chaos.check.replay import Replay


@dataclass
class Simulated:
    """Every operation takes effect at a random point between its call and its return; some answers are lost."""

    random: Random
    clients: int = 5
    keys: tuple[bytes, ...] = (b"a", b"b", b"c")
    lost: float = 0.05
    operations: list[Operation] = field(default_factory=list)
    applied: list[tuple[int, Operation, State]] = field(default_factory=list)  # when, what, and the store after it

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
                self.applied.append((moment, Operation(client, call, end, request, Outcome.OK), state))
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


@dataclass
class Watched:
    """What members that apply a random time later than the store show of it, to watches and to stale reads."""

    random: Random
    store: Simulated

    def __post_init__(self) -> None:
        self.truth = Replay([operation for _, operation, _ in self.store.applied])
        self.end = 10 + max(moment for moment, _, _ in self.store.applied)

    def operations(self) -> list[Operation]:
        """Those of the store; answers whose header shows a later revision have one that the time allows."""
        return [self._late(each) for each in self.store.operations]

    def _late(self, operation: Operation) -> Operation:
        if operation.answer is None or not isinstance(operation.request, Grant | Revoke | Compact):
            return operation
        effect = next(moment for moment, each, _ in self.store.applied if each.client == operation.client
                      and each.call == operation.call)  # fmt: skip
        assert operation.end is not None
        at = self.random.randint(effect, operation.end)
        return replace(operation, answer=Answer(self._state(at).revision, operation.answer.result))

    def _state(self, moment: int) -> State:
        """The store at a moment."""
        before = [state for at, _, state in self.store.applied if at <= moment]
        return before[-1] if before else self.truth.state(self.truth.first)

    def watch(self, number: int) -> Watch:
        begin, lag = self.random.randint(1, self.end), self.random.randint(0, 80)
        state = self._state(begin - lag)
        start = self.random.choice((0, 0, self.random.randint(1, state.revision), state.revision + 2))
        key, end = self.random.choice(((b"a", b""), (b"a", b"c"), (b"", b"\0")))
        asked = WatchRequest(number, number, begin, key or b"\0", end, start, prev_kv=self.random.random() < 0.5)
        created = WatchResponse(begin, state.revision, created=True)
        if 0 < start < state.compacted:
            gone = WatchResponse(begin, 0, canceled=True, compact_revision=state.compacted)
            return Watch(asked, (created, gone))
        upto = self._state(self.random.randint(begin, self.end + lag) - lag).revision
        return Watch(asked, (created, *self._told(asked, start or state.revision + 1, state.revision, upto)))

    def _told(self, asked: WatchRequest, first: int, shown: int, upto: int) -> list[WatchResponse]:
        """The past in one response, then revision after revision, with a notice of progress now and then."""
        told = []
        past = tuple(self._events(asked, first, shown))
        if past:
            told.append(WatchResponse(0, shown, past))
        for revision in range(max(first, shown + 1), upto + 1):
            events = tuple(self._events(asked, revision, revision))
            if events:
                told.append(WatchResponse(0, revision, events))
            if self.random.random() < 0.2:
                told.append(WatchResponse(0, revision))
        return told

    def _events(self, asked: WatchRequest, first: int, last: int) -> list[Event]:
        events = self.truth.events(asked, first, last)
        return [event if asked.prev_kv else replace(event, prev=None) for event in events]

    def read(self, client: int) -> Operation:
        """By a client that reads once."""
        at = self.random.randint(1, self.end)
        state = self._state(at - self.random.randint(0, 80))
        asked = Range(b"a", b"c", revision=self.random.choice((0, self.random.randint(1, state.revision + 1))),
                      serializable=True)  # fmt: skip
        error = ""
        if asked.revision > state.revision:
            error = FUTURE_REVISION
        elif 0 < asked.revision < state.compacted:
            error = COMPACTED
        if error:
            return Operation(client, at, at + 1, asked, Outcome.FAILED, error=error)
        found = self.truth.find(asked, asked.revision or state.revision)
        return Operation(client, at, at + 1, asked, Outcome.OK, Answer(state.revision, found))


def whole_history(seed: int, count: int = 100) -> History:
    """Operations, stale reads and watches, all as they should be."""
    random = Random(seed)
    store = Simulated(random, lost=random.choice((0.05, 0.3)))
    store.run(count)
    shown = Watched(random, store)
    reads = [shown.read(10_000 + number) for number in range(20)]
    return History(Setting(), (*shown.operations(), *reads), tuple(shown.watch(number) for number in range(20)))


def renamed(operation: Operation, client: int) -> Operation:
    return replace(operation, client=client)
