"""A correct store on one line of time, and clients of it: histories that are right by construction.

``whole_history`` has members that lag behind the store in it: their watches and stale reads show an older state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random

from chaos.check.etcd_model import EtcdModel, State
from chaos.check.history import (
    COMPACTED,
    FUTURE_REVISION,
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

CALM = {"get": 30, "list": 10, "old": 0, "put": 25, "delete": 10, "txn": 15, "grant": 4, "revoke": 3, "compact": 3}
DENSE = {
    "get": 15,
    "list": 7,
    "old": 6,
    "put": 22,
    "delete": 10,
    "txn": 16,
    "grant": 8,
    "revoke": 10,
    "compact": 6,
}
"""How often each kind of request is made: DENSE has more of what makes the order of writes hard to tell."""


@dataclass
class Simulated:
    """Every operation takes effect at a random time between its call and its return, up to ``width`` after each.

    Of ``lost`` answers the client never hears; then the effect may come long after, or never. Headers of leases
    and compactions show a revision that the store had at any time between effect and return.
    """

    random: Random
    clients: int = 5
    keys: tuple[bytes, ...] = (b"a", b"b", b"c")
    lost: float = 0.05
    width: int = 60
    mix: dict[str, int] = field(default_factory=lambda: CALM)
    repeated: bool = False  # whether values are written more than once
    operations: list[Operation] = field(default_factory=list)
    applied: list[tuple[int, Request, State]] = field(default_factory=list)  # when, what, and the store after it

    def __post_init__(self) -> None:
        self._model = EtcdModel(self.keys)
        self._state = self._model.empty()
        self._versions = {self._state.revision: self._state}
        self._leases = [0]
        self._agenda: list[tuple[int, int, Callable[[], object]]] = []
        self._now = self._planned = self._left = 0

    def run(self, count: int) -> list[Operation]:
        """Up to ``count`` operations, in the order in which they were over for their clients."""
        self._left = count
        for client in range(self.clients):
            self._later(self.width, self._call, client)
        while self._agenda:
            self._now, _, act = heappop(self._agenda)
            act()
        return self.operations

    def at(self, moment: int) -> State:
        """The store at a moment."""
        before = [state for when, _, state in self.applied if when <= moment]
        return before[-1] if before else self._model.empty()

    def _later(self, width: int, act: Callable[..., object], *about: object) -> None:
        """Within ``width``, in the order planned where times are equal."""
        self._planned += 1
        moment = self._now + self.random.randint(1, width)
        heappush(self._agenda, (moment, self._planned, lambda: act(*about)))

    def _call(self, client: int) -> None:
        if not self._left:
            return
        self._left -= 1
        request, call = self._request(), self._now
        if self.random.random() >= self.lost:
            self._later(self.width, self._carry_out, client, call, request)
            return
        self.operations.append(Operation(client, call, None, request, Outcome.UNKNOWN))
        if self.random.random() < 0.6:
            self._later(self.width * self.random.choice((1, 10)), self._apply, request)
        self.clients += 1  # it goes on under a new number
        self._later(self.width, self._call, self.clients)

    def _carry_out(self, client: int, call: int, request: Request) -> None:
        self._later(self.width, self._return, client, call, request, self._apply(request))

    def _apply(self, request: Request) -> Answer | str:
        self._state, answer = self._model.perform(self._state, request)
        self._versions.setdefault(self._state.revision, self._state)
        self.applied.append((self._now, request, self._state))
        if isinstance(request, Range) and request.revision and isinstance(answer, Answer):
            found = self._model.find(self._versions[request.revision].slots, request)
            return replace(answer, result=found)
        return answer

    def _return(self, client: int, call: int, request: Request, answer: Answer | str) -> None:
        if isinstance(answer, str):
            made = Operation(client, call, self._now, request, Outcome.FAILED, error=answer)
        else:
            if isinstance(request, Grant | Revoke | Compact):
                answer = replace(answer, revision=self.random.randint(answer.revision, self._state.revision))
            made = Operation(client, call, self._now, request, Outcome.OK, answer)
        self.operations.append(made)
        self._later(self.width // 2, self._call, client)

    def _request(self) -> Request:
        random, revision, unique = self.random, self._state.revision, self._planned
        key = random.choice(self.keys)
        value = random.choice((b"x", b"y")) if self.repeated else b"%d" % unique
        match random.choices(list(self.mix), list(self.mix.values()))[0]:
            case "get":
                return Range(key)
            case "list":
                return Range(self.keys[0], b"\0", limit=random.choice((0, 0, 1, 2)))
            case "old":
                at = revision - random.choice((0, 1, 2, 5)) + random.choice((0, 0, 0, 2))
                return Range(key, random.choice((b"", b"\0")), revision=max(1, at))
            case "put":
                return Put(key, value, lease=random.choice(self._leases[-3:]))
            case "delete":
                return Delete(key, random.choice((b"", b"", b"\0")))
            case "txn":
                return self._txn(key, value)
            case "grant":
                self._leases.append(unique)
                return Grant(unique, 3600)
            case "revoke":
                return Revoke(random.choice(self._leases[-3:]))
        return Compact(random.randint(1, revision + 1))

    def _txn(self, key: bytes, value: bytes) -> Txn:
        random, revision = self.random, self._state.revision
        other = random.choice(self.keys)
        compare = random.choice(
            (
                Compare(key, Target.MOD, Relation.EQUAL, random.choice((0, revision, max(0, revision - 1)))),
                Compare(key, Target.VERSION, Relation.GREATER, random.choice((0, 1, 2))),
                Compare(other, Target.CREATE, Relation.NOT_EQUAL, 0),
                Compare(key, Target.VALUE, Relation.LESS, value),
            )
        )
        extra = random.choice((Put(other, value), Delete(other))) if other != key else Range(key)
        otherwise = random.choice(((), (Range(key),), (Delete(other),), (Put(other, value),)))
        return Txn(random.choice(((compare,), (compare,), ())), (Put(key, value), extra), otherwise)


def history(seed: int, count: int = 60, **options: object) -> list[Operation]:
    return Simulated(Random(seed), **options).run(count)  # type: ignore[arg-type]


class Watched:
    """What members that apply a random time later than the store show of it, to watches and to stale reads."""

    def __init__(self, random: Random, store: Simulated) -> None:
        self._random = random
        self._store = store
        self._truth = Replay([Operation(0, 0, 1, request, Outcome.OK) for _, request, _ in store.applied])
        self._end = 10 + max((moment for moment, _, _ in store.applied), default=0)
        self._watches: list[Watch] = []

    def _lag(self) -> int:
        return self._random.randint(0, 2 * self._store.width)

    def watches(self, count: int) -> tuple[Watch, ...]:
        """``count`` watchers; some go on at another member, behind the last revision they were told of."""
        for _ in range(count):
            self._watcher()
        return tuple(self._watches)

    def _watcher(self) -> None:
        random, store = self._random, self._store
        begin, start = random.randint(1, self._end), 0
        key, end = random.choice(((random.choice(store.keys), b""), (b"a", b"c"), (b"\0", b"\0")))
        prev_kv, no_put, no_delete = (random.random() < share for share in (0.5, 0.15, 0.15))
        for resumed in range(random.choice((1, 1, 3))):
            number, lag = len(self._watches), self._lag()
            state, until = store.at(begin - lag), random.randint(begin, self._end + lag)
            if not resumed:
                start = random.choice((0, 0, random.randint(1, state.revision), state.revision + 2))
            asked = WatchRequest(number, number, begin, key, end, start, prev_kv, no_put, no_delete, fragment=True)
            responses = list(self._stream(asked, state, store.at(until - lag).revision))
            self._watches.append(Watch(asked, tuple(responses)))
            told = [each.revision for each in responses if each.is_progress or (each.events and not each.fragment)]
            if responses[-1].canceled or until >= self._end:
                return
            begin, start = until, max((start or state.revision + 1, *(revision + 1 for revision in told)))

    def _stream(self, asked: WatchRequest, state: State, upto: int) -> Iterator[WatchResponse]:
        """The past in one response, then revision after revision, with a notice of progress now and then."""
        now, first = state.revision, asked.start_revision or state.revision + 1
        yield WatchResponse(asked.time, now, created=True)
        if first < state.compacted:
            yield WatchResponse(asked.time, 0, canceled=True, compact_revision=state.compacted)
            return
        past = tuple(self._events(asked, first, now, state.compacted))
        if past:
            yield WatchResponse(asked.time, now, past)
        for revision in range(max(first, now + 1), upto + 1):
            events = tuple(self._events(asked, revision, revision))
            if len(events) > 1 and self._random.random() < 0.5:
                yield WatchResponse(asked.time, revision, events[:1], fragment=True)
                if self._random.random() < 0.1:
                    return  # the connection broke
                events = events[1:]
            if events:
                yield WatchResponse(asked.time, revision, events)
            if self._random.random() < 0.2:
                yield WatchResponse(asked.time, revision)
        gone = self._store.at(self._end).compacted
        if max(first, upto + 1) < gone and self._random.random() < 0.3:  # it was too slow
            yield WatchResponse(asked.time, 0, canceled=True, compact_revision=gone)

    def _events(self, asked: WatchRequest, first: int, last: int, compacted: int = -1) -> Iterator[Event]:
        """Previous versions that are compacted are missing."""
        for event in self._truth.events(asked, first, last):
            yield event if asked.prev_kv and event.revision > compacted else replace(event, prev=None)

    def read(self, client: int) -> Operation:
        """By a client that reads once."""
        moment = self._random.randint(1, self._end)
        state = self._store.at(moment - self._lag())
        asked = Range(
            self._store.keys[0],
            self._random.choice((b"", b"\0")),
            limit=self._random.choice((0, 0, 1)),
            revision=self._random.choice((0, self._random.randint(1, state.revision + 1))),
            serializable=True,
        )
        error = ""
        if asked.revision > state.revision:
            error = FUTURE_REVISION
        elif 0 < asked.revision < state.compacted:
            error = COMPACTED
        if error:
            return Operation(client, moment, moment + 1, asked, Outcome.FAILED, error=error)
        found = self._truth.find(asked, asked.revision or state.revision)
        return Operation(client, moment, moment + 1, asked, Outcome.OK, Answer(state.revision, found))


def whole_history(seed: int) -> History:
    """Operations, stale reads and watches, all as they should be; few or many, calm or dense."""
    random = Random(seed)
    store = Simulated(
        random,
        clients=random.choice((3, 6, 10)),
        keys=(b"a", b"b", b"c", b"d")[: random.choice((2, 3, 4))],
        lost=random.choice((0.02, 0.1, 0.3)),
        width=random.choice((30, 80, 200)),
        mix=random.choice((CALM, DENSE)),
        repeated=random.random() < 0.2,
    )
    store.run(random.choice((15, 30, 60, 100)))
    shown = Watched(random, store)
    reads = [shown.read(10_000 + number) for number in range(random.choice((0, 3, 10)))]
    return History(Setting(), (*store.operations, *reads), shown.watches(random.choice((0, 1, 2, 6, 15))))
