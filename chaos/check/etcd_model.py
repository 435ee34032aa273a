"""etcd as one sequential object with a global revision (checkers contract §1.2; etcd contract §1-§5, §7).

``perform`` is the model itself: a request on a state gives the next state and the only right answer. ``EtcdPart``
asks whether a recorded answer is that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from chaos.check import words
from chaos.check.evidence import puts, revisions, twins
from chaos.check.history import (
    COMPACTED,
    FUTURE_REVISION,
    LEASE_EXISTS,
    LEASE_NOT_FOUND,
    Action,
    Answer,
    Chosen,
    Compact,
    Compare,
    Delete,
    Deleted,
    Done,
    Found,
    Grant,
    KeyValue,
    Operation,
    Outcome,
    Put,
    Range,
    Relation,
    Request,
    Revoke,
    Target,
    Txn,
    in_range,
)


class Slot(NamedTuple):
    """The living version of a key."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class State(NamedTuple):
    """``slots`` are in the order of the model's keys. ``compacted`` is -1 before the first compaction."""

    revision: int
    compacted: int
    slots: tuple[Slot | None, ...]
    leases: frozenset[int]


Refusal = str


class EtcdModel:
    """A store that can hold ``keys``."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = tuple(sorted(set(keys)))
        self._spans = lru_cache(maxsize=4096)(self._span)

    def empty(self, revision: int = 1) -> State:
        return State(revision, -1, (None,) * len(self.keys), frozenset())

    def _span(self, key: bytes, end: bytes) -> tuple[int, ...]:
        return tuple(i for i, known in enumerate(self.keys) if in_range(known, key, end))

    def perform(self, state: State, request: Request) -> tuple[State, Answer | Refusal]:
        """The next state and the answer; a refused request leaves the state as it is."""
        match request:
            case Range():
                return state, self._range(state, request)
            case Put() | Delete():
                return self._single(state, request)
            case Txn():
                return self._txn(state, request)
            case Grant():
                if request.lease in state.leases:
                    return state, LEASE_EXISTS
                return state._replace(leases=state.leases | {request.lease}), Answer(state.revision, Done())
            case Revoke():
                return self._revoke(state, request)
            case Compact():
                if request.revision <= state.compacted:
                    return state, COMPACTED
                if request.revision > state.revision:
                    return state, FUTURE_REVISION
                return state._replace(compacted=request.revision), Answer(state.revision, Done())

    def _range(self, state: State, request: Range) -> Answer | Refusal:
        """Of a read at an older revision only the header is known here; chaos.check.reads checks its content."""
        if request.revision > state.revision:
            return FUTURE_REVISION
        if 0 < request.revision < state.compacted:
            return COMPACTED
        return Answer(state.revision, self.find(state.slots, request))

    def place(self, key: bytes) -> int | None:
        """Where a key is in ``slots``; None for a key of no model."""
        places = self._spans(key, b"")
        return places[0] if places else None

    def find(self, slots: Sequence[Slot | None], request: Range) -> Found:
        """What a range read of ``slots`` shows."""
        places = [i for i in self._spans(request.key, request.end) if slots[i] is not None]
        shown = places[: request.limit] if request.limit > 0 else places
        return Found(tuple(KeyValue(self.keys[i], *slot) for i in shown if (slot := slots[i])), len(places))

    def _single(self, state: State, action: Put | Delete) -> tuple[State, Answer | Refusal]:
        after, answer = self._run(state, (action,))
        if isinstance(answer, str):
            return after, answer
        assert isinstance(answer.result, Chosen)
        return after, Answer(answer.revision, answer.result.results[0])

    def _txn(self, state: State, request: Txn) -> tuple[State, Answer | Refusal]:
        succeeded = all(self.holds(state, compare) for compare in request.compares)
        return self._run(state, request.success if succeeded else request.failure, succeeded)

    def holds(self, state: State, compare: Compare) -> bool:
        places = self._spans(compare.key, b"")
        return holds(state.slots[places[0]] if places else None, compare)

    def _run(
        self, state: State, actions: Sequence[Action], succeeded: bool = True
    ) -> tuple[State, Answer | Refusal]:
        """All actions at one revision: the next one if anything was written or really deleted."""
        for action in actions:
            if isinstance(action, Put) and action.lease and action.lease not in state.leases:
                return state, LEASE_NOT_FOUND
        slots, revision, changed = list(state.slots), state.revision + 1, False
        results: list[Found | Deleted | Done] = []
        for action in actions:
            if isinstance(action, Range):
                results.append(self.find(slots, action))
                continue
            places = self._spans(action.key, b"" if isinstance(action, Put) else action.end)
            if isinstance(action, Put):
                slots[places[0]] = _put(slots[places[0]], action, revision)
                results.append(Done())
                changed = True
                continue
            living = [i for i in places if slots[i] is not None]
            for i in living:
                slots[i] = None
            results.append(Deleted(len(living)))
            changed = changed or bool(living)
        if changed:
            state = state._replace(revision=revision, slots=tuple(slots))
        return state, Answer(state.revision, Chosen(succeeded, tuple(results)))

    def _revoke(self, state: State, request: Revoke) -> tuple[State, Answer | Refusal]:
        if request.lease not in state.leases:
            return state, LEASE_NOT_FOUND
        slots = tuple(None if slot and slot.lease == request.lease else slot for slot in state.slots)
        revision = state.revision + (slots != state.slots)
        state = State(revision, state.compacted, slots, state.leases - {request.lease})
        return state, Answer(revision, Done())


def _put(slot: Slot | None, action: Put, revision: int) -> Slot:
    created, version = (slot.create_revision, slot.version + 1) if slot else (revision, 1)
    return Slot(action.value, created, revision, version, action.lease)


def holds(slot: Slot | None, compare: Compare) -> bool:
    """Whether a comparison holds for a key (etcd contract §4.2)."""
    stored: int | bytes
    match compare.target:
        case Target.VALUE:
            if slot is None:
                return False
            stored = slot.value
        case Target.VERSION:
            stored = slot.version if slot else 0
        case Target.CREATE:
            stored = slot.create_revision if slot else 0
        case Target.MOD:
            stored = slot.mod_revision if slot else 0
    return related(stored, compare.relation, compare.value)


def related(stored: int | bytes, relation: Relation, given: int | bytes) -> bool:
    """Raises TypeError when numbers are compared with bytes."""
    match relation:
        case Relation.EQUAL:
            return stored == given
        case Relation.NOT_EQUAL:
            return stored != given
        case Relation.GREATER:
            return stored > given  # type: ignore[operator]
        case Relation.LESS:
            return stored < given  # type: ignore[operator]


def keys_written(operations: Iterable[Operation]) -> set[bytes]:
    """Every key that an operation may have created."""
    return {put.key for operation in operations for put in puts(operation)}


class Seen(Protocol):
    """What others saw of single revisions (chaos.check.witness): ``newest`` is reached by operation ``end``."""

    newest: int
    end: Operation

    def agrees(self, model: EtcdModel, before: State, after: State) -> bool:
        """Whether a step from one revision to the next is the one that was seen."""
        ...


NOTHING: Final[Mapping[int, frozenset[bytes]]] = {}


class EtcdPart:
    """The whole history against the model: one part, because the revision is global. ``gone`` are keys known to
    have been deleted, by revision: what an unknown operation did there must agree. With a ``witness`` every step
    must agree with it."""

    name = "the store"

    def __init__(
        self,
        operations: Sequence[Operation],
        start_revision: int = 1,
        gone: Mapping[int, frozenset[bytes]] = NOTHING,
        witness: Seen | None = None,
    ) -> None:
        self.operations = operations
        self._witness = witness
        self.model = EtcdModel(keys_written(operations))
        self._gone = {revision: [self.model.place(key) for key in keys] for revision, keys in gone.items()}
        self._unknown_leases = Counter(
            lease for operation in operations if operation.end is None for lease in leases_of(operation)
        )
        self.initial = self.model.empty(start_revision)

        self.ranks = revisions(operations)
        self.twins = twins(operations)
        self._claimed = {
            revision: index for index, operation in enumerate(operations) if (revision := revision_made(operation))
        }

    def step(self, state: State, index: int) -> State | None:
        operation, witness = self.operations[index], self._witness
        if witness is not None and operation is witness.end:
            return state if state.revision >= witness.newest else None
        seen = operation.exact_revision
        if seen and seen - state.revision not in _ADVANCE[operation.writes]:
            return None  # most candidates end here, before anything is computed
        after, expected = self.model.perform(state, operation.request)
        if operation.outcome is Outcome.UNKNOWN:
            fits = after.revision == state.revision or self._agrees(state, after, index)
        else:
            fits = _fits(state, operation, expected)
        if fits and witness is not None and after.revision > state.revision:
            fits = witness.agrees(self.model, state, after)  # last, as it costs the most
        return after if fits else None

    def _agrees(self, before: State, after: State, index: int) -> bool:
        """Whether an unknown operation may have made this revision, as far as is known from others."""
        if self._claimed.get(after.revision, index) != index:
            return False
        places = self._gone.get(after.revision, ())
        return all(p is not None and before.slots[p] is not None and after.slots[p] is None for p in places)

    def may_help(self, state: State, index: int, pending: Sequence[int], floor: int) -> bool:
        """What makes a revision must make one that nobody else made, and wait for all answers of the one before.
        What makes none is only felt by few, and can wait until one of them is next."""
        operation, made = self.operations[index], state.revision + 1
        if self._claimed.get(made, index) == index and operation.seen_at in (0, made) and not 0 < floor < made:
            return True
        match operation.request:
            case Compact():
                return any(_feels_compaction(self.operations[other]) for other in pending)
            case Grant(lease=lease) | Revoke(lease=lease):
                return self._unknown_leases[lease] > 1 or any(
                    lease in leases_of(self.operations[other]) for other in pending
                )
        return False

    def why(self, state: State, index: int) -> str:
        operation = self.operations[index]
        _, expected = self.model.perform(state, operation.request)
        return words.contradiction(operation, expected)


def revision_made(operation: Operation) -> int:
    """The revision that this operation certainly made; 0 if it made none or none is known."""
    if operation.answer is None:
        return operation.seen_at
    result, request = operation.answer.result, operation.request
    match request:
        case Put():
            made = True
        case Delete():
            made = isinstance(result, Deleted) and result.count > 0
        case Txn():
            assert isinstance(result, Chosen)
            branch = request.success if result.succeeded else request.failure
            made = any(isinstance(action, Put) for action in branch) or any(
                isinstance(each, Deleted) and each.count for each in result.results
            )
        case _:
            made = False
    return operation.answer.revision if made else 0


def _feels_compaction(operation: Operation) -> bool:
    request = operation.request
    return isinstance(request, Compact) or (isinstance(request, Range) and request.revision > 0)


def leases_of(operation: Operation) -> set[int]:
    """The leases that matter to an operation."""
    request = operation.request
    if isinstance(request, Grant | Revoke):
        return {request.lease}
    return {put.lease for put in puts(operation) if put.lease}


_ADVANCE = {True: (0, 1), False: (0,)}


def _fits(state: State, operation: Operation, expected: Answer | Refusal) -> bool:
    if isinstance(expected, str):
        return operation.error == expected
    answer = operation.answer
    if answer is None or (answer.revision and answer.revision < expected.revision):
        return False
    if operation.exact_revision not in (0, expected.revision):
        return False
    if isinstance(operation.request, Range) and 0 < operation.request.revision < state.revision:
        return True
    return answer.result == expected.result
