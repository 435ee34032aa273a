"""Requests and answers in words, for explanations."""

from __future__ import annotations

from chaos.check.history import (
    Action,
    Answer,
    Chosen,
    Compact,
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
    Request,
    Result,
    Revoke,
    Txn,
)

_VALUE_MAX = 40


def text(data: bytes) -> str:
    """Bytes as people read them, shortened."""
    shown = data.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= _VALUE_MAX else f"{shown[:_VALUE_MAX]}… ({len(data)} bytes)"


def interval(key: bytes, end: bytes) -> str:
    if not end:
        return text(key)
    return f"[{text(key)}, {'end' if end == bytes(1) else text(end)})"


def request(asked: Request) -> str:
    match asked:
        case Range():
            kind = "serializable get" if asked.serializable else "get"
            limit = f" limit {asked.limit}" if asked.limit else ""
            at = f" at revision {asked.revision}" if asked.revision else ""
            return f"{kind} {interval(asked.key, asked.end)}{limit}{at}"
        case Put():
            lease = f" with lease {asked.lease}" if asked.lease else ""
            return f"put {text(asked.key)} = {text(asked.value)}{lease}"
        case Delete():
            return f"delete {interval(asked.key, asked.end)}"
        case Txn():
            return _txn(asked)
        case Grant():
            return f"grant lease {asked.lease}"
        case Revoke():
            return f"revoke lease {asked.lease}"
        case Compact():
            return f"compact to revision {asked.revision}"


def _txn(asked: Txn) -> str:
    compares = [
        f"{compare.target} of {text(compare.key)} {compare.relation} "
        f"{compare.value if isinstance(compare.value, int) else text(compare.value)}"
        for compare in asked.compares
    ]
    condition = " and ".join(compares) or "true"
    return f"txn if {condition} then {_branch(asked.success)} else {_branch(asked.failure)}"


def _branch(actions: tuple[Action, ...]) -> str:
    return f"({'; '.join(request(action) for action in actions)})" if actions else "nothing"


def key_value(kv: KeyValue) -> str:
    lease = f", lease {kv.lease}" if kv.lease else ""
    return (
        f"{text(kv.key)} = {text(kv.value)} (mod revision {kv.mod_revision}, version {kv.version}, "
        f"created at {kv.create_revision}{lease})"
    )


def result(told: Result) -> str:
    match told:
        case Found():
            listed = ", ".join(key_value(kv) for kv in told.kvs) or "nothing"
            return listed if told.count == len(told.kvs) else f"{listed} (of {told.count} keys)"
        case Deleted():
            return f"{told.count} deleted"
        case Done():
            return "done"
        case Chosen():
            branch = "then" if told.succeeded else "else"
            return f"{branch}: {'; '.join(result(each) for each in told.results) or 'nothing'}"


def answer(told: Answer | str) -> str:
    """An answer, or the error a request was refused with."""
    if isinstance(told, str):
        return f"error {told!r}"
    return f"{result(told.result)} at revision {told.revision}"


def operation(done: Operation) -> str:
    """One operation with what came of it."""
    if done.outcome is Outcome.UNKNOWN:
        told = f"outcome unknown ({done.error})" if done.error else "outcome unknown"
    else:
        told = answer(done.answer if done.answer is not None else done.error)
    where = f" at {done.endpoint}" if done.endpoint else ""
    return f"client {done.client}{where}: {request(done.request)} -> {told}"


def contradiction(done: Operation, expected: Answer | str) -> str:
    """What a client was told, and what it must have been told."""
    told = answer(done.answer if done.answer is not None else done.error)
    return f"{request(done.request)} was answered: {told}; it should be: {answer(expected)}"
