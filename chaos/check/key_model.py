"""One key of etcd as a register with versions (checkers contract §1, P-compositionality).

A history is projected onto each key: what a request asked of this key and what its answer said about it. Every
projection of a linearizable history is linearizable, so an illegal one proves a violation; what spans keys (that a
transaction is atomic, that revisions have no gaps) only the global model sees. Revisions are used as far as they
are known: those of one key must grow.

Where an effect depends on other keys (a transaction of unknown outcome) the projection has several next states,
therefore a state here is a set of registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chaos.check import words
from chaos.check.etcd_model import related
from chaos.check.evidence import kvs_read, puts, revisions, twins
from chaos.check.history import (
    Action,
    Chosen,
    Compare,
    Delete,
    Deleted,
    Done,
    Found,
    KeyValue,
    Operation,
    Put,
    Range,
    Revoke,
    Target,
    Txn,
    in_range,
)


class Register(NamedTuple):
    """``value`` None: the key does not exist. ``changed`` is the revision of the last change, ``created`` that of
    the creation; None where no answer has told them yet."""

    value: bytes | None
    version: int
    lease: int
    changed: int | None
    created: int | None


ABSENT = Register(None, 0, 0, None, None)
Registers = frozenset[Register]


class KeyPart:
    """The projection of a history onto one key."""

    def __init__(self, key: bytes, operations: Sequence[Operation]) -> None:
        self.key = key
        self.name = f"key {words.text(key)}"
        self.operations = operations
        self.ranks = revisions(operations)
        self.twins = twins(operations)
        self.initial: Registers = frozenset((ABSENT,))

    def step(self, state: Registers, index: int) -> Registers | None:
        operation = self.operations[index]
        return frozenset(after for register in state for after in self._after(register, operation)) or None

    def may_help(self, state: Registers, index: int, pending: Sequence[int], floor: int) -> bool:
        seen_at = self.operations[index].seen_at
        return not floor or not seen_at or floor >= seen_at

    def why(self, state: Registers, index: int) -> str:
        known = " or ".join(sorted(_shown(register) for register in state))
        return f"{words.operation(self.operations[index])}; but at that point {words.text(self.key)} {known}"

    def _after(self, register: Register, operation: Operation) -> Iterator[Register]:
        revision = operation.answer.revision if operation.answer is not None else operation.seen_at
        if revision and register.changed is not None and revision < register.changed:
            return  # the answer is from before the last change
        request = operation.request
        result = operation.answer.result if operation.answer is not None else None
        match request:
            case Txn():
                yield from self._after_txn(register, request, result, revision)
            case Revoke():
                attached = register.value is not None and register.lease == request.lease
                yield _deleted(register, operation.exact_revision) if attached else register
            case Range() | Put() | Delete():
                assert not isinstance(result, Chosen)
                after = self._act(register, request, result, revision)
                if after is not None:
                    yield after

    def _act(
        self,
        register: Register,
        action: Action,
        result: Found | Deleted | Done | None,
        revision: int,
    ) -> Register | None:
        """None: ``result`` is impossible. A result of None is an unknown one."""
        match action:
            case Range():
                return self._observe(register, action, result) if isinstance(result, Found) else register
            case Put():
                return self._put(register, action, revision) if action.key == self.key else register
            case Delete():
                if not in_range(self.key, action.key, action.end):
                    return register
                present = register.value is not None
                counted = result.count if isinstance(result, Deleted) else None
                if counted is not None and bool(counted) != present and (present or not action.end):
                    return None
                return _deleted(register, revision) if present else register

    def _put(self, register: Register, action: Put, revision: int) -> Register | None:
        if revision and register.changed is not None and revision <= register.changed:
            return None
        changed = revision or None
        created = register.created if register.version else changed
        return Register(action.value, register.version + 1, action.lease, changed, created)

    def _observe(self, register: Register, asked: Range, found: Found) -> Register | None:
        if not covers(asked, found, self.key):
            return register
        kv = next((kv for kv in found.kvs if kv.key == self.key), None)
        return _agreed(register, kv)

    def _after_txn(self, register: Register, request: Txn, result: object, revision: int) -> Iterator[Register]:
        truth = self._truth(register, request.compares)
        if isinstance(result, Chosen):
            branches = [result.succeeded] if truth in (None, result.succeeded) else []
        else:
            branches = [True, False] if truth is None else [truth]
        for succeeded in branches:
            results = result.results if isinstance(result, Chosen) else None
            after = self._branch(register, request.success if succeeded else request.failure, results, revision)
            if after is not None:
                yield after

    def _branch(
        self,
        register: Register,
        actions: Sequence[Action],
        results: Sequence[Found | Deleted | Done] | None,
        revision: int,
    ) -> Register | None:
        for number, action in enumerate(actions):
            after = self._act(register, action, results[number] if results is not None else None, revision)
            if after is None:
                return None
            register = after
        return register

    def _truth(self, register: Register, compares: Sequence[Compare]) -> bool | None:
        """Whether all compares hold; None when that depends on other keys or on a revision nobody was told."""
        truths = [_holds(register, compare) if compare.key == self.key else None for compare in compares]
        if False in truths:
            return False
        return None if None in truths else True


def _holds(register: Register, compare: Compare) -> bool | None:
    exists = register.value is not None
    stored: int | bytes | None
    match compare.target:
        case Target.VALUE:
            if not exists:
                return False
            stored = register.value
        case Target.VERSION:
            stored = register.version
        case Target.MOD:
            stored = register.changed if exists else 0
        case Target.CREATE:
            stored = register.created if exists else 0
    return None if stored is None else related(stored, compare.relation, compare.value)


def _deleted(register: Register, revision: int) -> Register:
    return Register(None, 0, 0, revision or register.changed, None)


def _agreed(register: Register, kv: KeyValue | None) -> Register | None:
    """What is known after reading ``kv``; None when it contradicts what was known."""
    if kv is None:
        return register if register.value is None else None
    if (register.value, register.version, register.lease) != (kv.value, kv.version, kv.lease):
        return None
    if register.changed not in (None, kv.mod_revision) or register.created not in (None, kv.create_revision):
        return None
    return register._replace(changed=kv.mod_revision, created=kv.create_revision)


def _shown(register: Register) -> str:
    if register.value is None:
        return "does not exist"
    changed = f", mod revision {register.changed}" if register.changed is not None else ""
    return f"is {words.text(register.value)} (version {register.version}{changed})"


def covers(asked: Range, found: Found, key: bytes) -> bool:
    """Whether the answer of a range read says something about ``key``: a limited one ends at its last key."""
    if not in_range(key, asked.key, asked.end):
        return False
    return len(found.kvs) == found.count or (bool(found.kvs) and key <= found.kvs[-1].key)


def touches(operation: Operation, key: bytes, leased: frozenset[int]) -> bool:
    """Whether an operation asks something of ``key``, or tells something about it. ``leased`` are the leases it
    was ever put with."""
    request = operation.request
    if isinstance(request, Range):
        # a read at a given revision says nothing about the latest state
        return not request.revision and in_range(key, request.key, request.end)
    if isinstance(request, Revoke):
        return request.lease in leased
    if isinstance(request, Txn):
        if any(compare.key == key for compare in request.compares):
            return True
        return any(in_range(key, *_interval(action)) for action in (*request.success, *request.failure))
    return isinstance(request, Put | Delete) and in_range(key, *_interval(request))


def _interval(action: Action) -> tuple[bytes, bytes]:
    return action.key, b"" if isinstance(action, Put) else action.end


def leases_of(operations: Iterable[Operation], key: bytes) -> frozenset[int]:
    """The leases ``key`` was put with."""
    return frozenset(put.lease for each in operations for put in puts(each) if put.key == key and put.lease)


def keys_seen(operations: Iterable[Operation]) -> set[bytes]:
    """Every key that an answer told of, written or not."""
    return {kv.key for kv in kvs_read(operations)}
