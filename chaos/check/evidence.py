"""What became of requests whose answers were lost, as far as others saw it (checkers contract §1.3).

A value written by one request only, and seen with mod_revision R, proves that this request was applied at R. That
leaves the verdict as it is and the search far less to try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from chaos.check.history import Action, Chosen, Found, KeyValue, Operation, Outcome, Put, Target, Txn, Watch


def kvs_read(operations: Iterable[Operation]) -> Iterator[KeyValue]:
    """Every version that an answer showed."""
    for operation in operations:
        if operation.answer is None:
            continue
        result = operation.answer.result
        for each in result.results if isinstance(result, Chosen) else (result,):
            if isinstance(each, Found):
                yield from each.kvs


def kvs_watched(watches: Iterable[Watch]) -> Iterator[KeyValue]:
    """Every version that a watch delivered."""
    for watch in watches:
        for response in watch.responses:
            for event in response.events:
                if event.is_put:
                    yield event.kv
                if event.prev is not None:
                    yield event.prev


def deletions(watches: Iterable[Watch]) -> dict[int, frozenset[bytes]]:
    """The keys that watches showed as deleted, by revision."""
    found: dict[int, set[bytes]] = {}
    for watch in watches:
        for response in watch.responses:
            for event in response.events:
                if not event.is_put:
                    found.setdefault(event.revision, set()).add(event.kv.key)
    return {revision: frozenset(keys) for revision, keys in found.items()}


def puts(operation: Operation) -> Iterator[Put]:
    """The puts of a request, of both branches of a transaction."""
    request = operation.request
    for action in (*request.success, *request.failure) if isinstance(request, Txn) else (request,):
        if isinstance(action, Put):
            yield action


def with_evidence(operations: Sequence[Operation], seen: Iterable[KeyValue]) -> list[Operation]:
    """The same operations; those of unknown outcome that were seen to be applied say at which revision."""
    writers: dict[tuple[bytes, bytes], int | None] = {}
    for index, operation in enumerate(operations):
        for put in puts(operation):
            written = (put.key, put.value)
            writers[written] = index if writers.get(written, index) == index else None
    found = list(operations)
    for kv in seen:
        writer = writers.get((kv.key, kv.value))
        if writer is not None and found[writer].outcome is Outcome.UNKNOWN:
            found[writer] = replace(found[writer], seen_at=kv.mod_revision)
    return found


def revisions(operations: Iterable[Operation]) -> list[int]:
    """The revision each was answered at, 0 where none is known: it never falls along a legal order."""
    return [operation.exact_revision for operation in operations]


def twins(operations: Sequence[Operation]) -> list[Hashable]:
    """For each operation what makes it interchangeable with others, None where nothing does.

    Writes whose effect nobody saw differ in their values only, and as nobody read these, of several the one called
    first can stand for any; unless a comparison of values could have felt the difference, or the value was written
    by others too, so that it may have been seen.
    """
    compared = {
        compare.key
        for operation in operations
        if isinstance(operation.request, Txn)
        for compare in operation.request.compares
        if compare.target is Target.VALUE
    }
    written = Counter(pair for each in operations for pair in {(put.key, put.value) for put in puts(each)})
    unique = frozenset(pair for pair, count in written.items() if count == 1)
    return [_twin(operation, compared, unique) for operation in operations]


def _twin(operation: Operation, compared: set[bytes], unique: frozenset[tuple[bytes, bytes]]) -> Hashable:
    if operation.outcome is not Outcome.UNKNOWN or operation.seen_at:
        return None
    if any(put.key in compared for put in puts(operation)):
        return None
    request = operation.request
    if not all((put.key, put.value) in unique for put in puts(operation)):
        return request
    if isinstance(request, Put):
        return replace(request, value=b"")
    if isinstance(request, Txn):
        return replace(request, success=_valueless(request.success), failure=_valueless(request.failure))
    return request


def _valueless(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    return tuple(replace(action, value=b"") if isinstance(action, Put) else action for action in actions)
