"""Histories as files: JSON lines, one record a line, each saying what it is.

The first line is the setting (``"record": "history"``), the rest operations, watches, watch responses and at most
one ending, in any order; a response names its watch. Bytes are UTF-8 text, or {"base64": …} where they are none.
Fields that have their default are left out. The schema is that of the dataclasses in chaos.check.history.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TextIO

from chaos.check import history
from chaos.check.history import History, Operation, Setting, Watch, WatchRequest, WatchResponse

FORMAT: Final = 1

_RECORDS: Final[dict[str, Any]] = {
    "history": Setting,
    "operation": Operation,
    "watch": WatchRequest,
    "response": WatchResponse,
    "ending": history.Ending,
}
_TAGGED: Final[tuple[Any, ...]] = (
    history.Range, history.Put, history.Delete, history.Txn, history.Grant, history.Revoke, history.Compact,
    history.Found, history.Deleted, history.Done, history.Chosen,
)  # fmt: skip
_TAGS: Final = {kind: kind.__name__.lower() for kind in _TAGGED}
_KINDS: Final = {tag: kind for kind, tag in _TAGS.items()}
_SCHEMA: Final[dict[Any, Mapping[str, tuple[Any, Any]]]] = {}


class RecordError(ValueError):
    """A line of a history file that cannot be read: ``line`` is its number, from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


class Writer:
    """Appends records to an open text file. A line is complete or, after a crash, the last one."""

    def __init__(self, file: TextIO, setting: Setting) -> None:
        self._file = file
        self._write("history", setting, format=FORMAT)

    def operation(self, operation: Operation) -> None:
        self._write("operation", operation)

    def watch(self, request: WatchRequest) -> None:
        self._write("watch", request)

    def response(self, watch: int, response: WatchResponse) -> None:
        self._write("response", response, watch=watch)

    def ending(self, ending: history.Ending) -> None:
        self._write("ending", ending)

    def _write(self, record: str, item: Any, **extra: int) -> None:
        document = {"record": record, **extra, **_encoded(item)}
        self._file.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def save(path: Path, recorded: History) -> None:
    """Write a whole history."""
    with path.open("w", encoding="utf-8") as file:
        writer = Writer(file, recorded.setting)
        for operation in recorded.operations:
            writer.operation(operation)
        for watch in recorded.watches:
            writer.watch(watch.request)
            for response in watch.responses:
                writer.response(watch.request.number, response)
        if recorded.ending is not None:
            writer.ending(recorded.ending)


def load(path: Path) -> History:
    """Read a history. Raises RecordError with the number of the first bad line, OSError."""
    with path.open("rb") as file:
        return parse(file)


def parse(lines: Iterable[bytes]) -> History:
    """Raises RecordError."""
    setting: Setting | None = None
    operations: list[Operation] = []
    requests: dict[int, WatchRequest] = {}
    responses: dict[int, list[WatchResponse]] = {}
    ending: history.Ending | None = None
    number = 0
    for number, item, watch in _records(lines):
        if isinstance(item, Setting) != (setting is None):
            raise RecordError(number, "the first line, and no other, is the record 'history'")
        if isinstance(item, Setting):
            setting = item
        elif isinstance(item, history.Ending):
            ending = item
        elif isinstance(item, Operation):
            operations.append(item)
        elif isinstance(item, WatchRequest):
            if item.number in requests:
                raise RecordError(number, f"watch {item.number} is there twice")
            requests[item.number], responses[item.number] = item, []
        elif watch in responses:
            responses[watch].append(item)
        else:
            raise RecordError(number, f"a response of watch {watch!r}, which no line before this one opened")
    if setting is None:
        raise RecordError(number + 1, "the file is empty")
    watches = tuple(Watch(request, tuple(responses[key])) for key, request in requests.items())
    return History(setting, tuple(operations), watches, ending)


def _records(lines: Iterable[bytes]) -> Iterator[tuple[int, Any, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            if not isinstance(document, dict) or document.get("record") not in _RECORDS:
                raise ValueError(f'no record; one has "record": one of {", ".join(_RECORDS)}')
            kind = document.pop("record")
            form = document.pop("format", FORMAT) if kind == "history" else FORMAT
            if form != FORMAT:
                raise ValueError(f"format {form!r}, this release reads {FORMAT}")
            watch = document.pop("watch", None) if kind == "response" else None
            yield number, _decoded_object(_RECORDS[kind], document, kind), watch
        except RecursionError:
            raise RecordError(number, "nested too deeply") from None
        except ValueError as error:
            raise RecordError(number, str(error)) from None


def _fields(kind: Any) -> Mapping[str, tuple[Any, Any]]:
    """Of a dataclass, by name: the type and the default (MISSING where there is none)."""
    if kind not in _SCHEMA:
        types_ = typing.get_type_hints(kind)
        _SCHEMA[kind] = {field.name: (types_[field.name], field.default) for field in dataclasses.fields(kind)}
    return _SCHEMA[kind]


def _encoded(item: Any) -> Any:
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(item).decode()}
    if isinstance(item, tuple):
        return [_encoded(each) for each in item]
    if not dataclasses.is_dataclass(item):
        return item
    kind = type(item)
    document = {"kind": _TAGS[kind]} if kind in _TAGS else {}
    for name, (_, default) in _fields(kind).items():
        value = getattr(item, name)
        if value != default or type(value) is not type(default):
            document[name] = _encoded(value)
    return document


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """``value`` as a ``kind``. Raises ValueError that says where it is none."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return _decoded_union(arguments, value, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is not a list")
        return tuple(_decoded(arguments[0], each, f"{where}[{number}]") for number, each in enumerate(value))
    if kind is bytes:
        return _decoded_bytes(value, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise ValueError(f"{where} is {value!r}, not one of {', '.join(kind)}")
        return kind(value)
    if dataclasses.is_dataclass(kind):
        return _decoded_object(kind, value, where)
    if type(value) is not kind:
        raise ValueError(f"{where} is {value!r}, not {kind.__name__}")
    return value


def _decoded_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in kinds:
        if value is None:
            return None
        kinds = tuple(kind for kind in kinds if kind is not type(None))
        if len(kinds) == 1:
            return _decoded(kinds[0], value, where)
    if int in kinds and bytes in kinds:
        return value if type(value) is int else _decoded_bytes(value, where)
    tag = value.get("kind") if isinstance(value, dict) else None
    kind = _KINDS.get(tag) if isinstance(tag, str) else None
    if kind not in kinds:
        raise ValueError(f"{where} has the kind {tag!r}, not one of {', '.join(_TAGS[each] for each in kinds)}")
    return _decoded_object(kind, {key: each for key, each in value.items() if key != "kind"}, where)


def _decoded_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    fields = _fields(kind)
    if unknown := [name for name in value if name not in fields and not (name == "kind" and kind in _TAGS)]:
        raise ValueError(f"{where} has an unknown field {unknown[0]!r}")
    made = {}
    for name, (field_kind, default) in fields.items():
        if name in value:
            made[name] = _decoded(field_kind, value[name], f"{where}.{name}")
        elif default is dataclasses.MISSING:
            raise ValueError(f"{where} has no {name!r}")
    return kind(**made)


def _decoded_bytes(value: Any, where: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError(f'{where} is neither text nor {{"base64": …}}')
