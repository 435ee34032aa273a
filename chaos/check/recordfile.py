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
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        elif isinstance(watch, int) and watch in responses:
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
            yield number, _decoded(kind, document), watch
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


class _Mismatch(ValueError):
    """A value that its schema does not allow. ``path`` grows from the inside out, as the error passes."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path = ""

    def __str__(self) -> str:
        return f"{self.path} {self.args[0]}"


_Decoder = Callable[[Any], Any]
_DECODERS: Final[dict[Any, _Decoder]] = {}


def _decoded(record: str, document: dict[str, Any]) -> Any:
    """Raises ValueError that says what is wrong where."""
    try:
        return _decoder(_RECORDS[record])(document)
    except _Mismatch as error:
        error.path = record + error.path
        raise


def _decoder(kind: Any) -> _Decoder:
    """What makes a ``kind`` of plain JSON, made once for each type."""
    if kind not in _DECODERS:
        _DECODERS[kind] = _make_decoder(kind)
    return _DECODERS[kind]


def _make_decoder(kind: Any) -> _Decoder:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return _union_decoder(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return _list_decoder(_decoder(typing.get_args(kind)[0]))
    if kind is bytes:
        return _decoded_bytes
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enum_decoder(kind)
    if dataclasses.is_dataclass(kind):
        return _object_decoder(kind)
    return _plain_decoder(kind)


def _plain_decoder(kind: Any) -> _Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise _Mismatch(f"is {value!r}, not {kind.__name__}")
        return value

    return decode


def _enum_decoder(kind: type[StrEnum]) -> _Decoder:
    members = {str(member): member for member in kind}

    def decode(value: Any) -> Any:
        if not isinstance(value, str) or value not in members:
            raise _Mismatch(f"is {value!r}, not one of {', '.join(members)}")
        return members[value]

    return decode


def _list_decoder(each: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Mismatch("is not a list")
        made: list[Any] = []
        try:
            made += map(each, value)
        except _Mismatch as error:
            error.path = f"[{len(made)}]{error.path}"
            raise
        return tuple(made)

    return decode


def _union_decoder(kinds: tuple[Any, ...]) -> _Decoder:
    """A value or None; a number or bytes; objects told apart by their kind."""
    if type(None) in kinds:
        others = tuple(kind for kind in kinds if kind is not type(None))
        inner = _decoder(others[0]) if len(others) == 1 else _union_decoder(others)
        return lambda value: None if value is None else inner(value)
    if int in kinds:
        return lambda value: value if type(value) is int else _decoded_bytes(value)
    tags = {_TAGS[kind]: _decoder(kind) for kind in kinds}

    def decode(value: Any) -> Any:
        tag = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in tags:
            raise _Mismatch(f"has the kind {tag!r}, not one of {', '.join(tags)}")
        return tags[tag](value)

    return decode


def _object_decoder(kind: Any) -> _Decoder:
    fields = {name: _decoder(each) for name, (each, _) in _fields(kind).items()}
    required = [name for name, (_, default) in _fields(kind).items() if default is dataclasses.MISSING]

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Mismatch("is not an object")
        made = {}
        for name, each in value.items():
            if name not in fields:
                if name == "kind" and kind in _TAGS:
                    continue
                raise _Mismatch(f"has an unknown field {name!r}")
            try:
                made[name] = fields[name](each)
            except _Mismatch as error:
                error.path = f".{name}{error.path}"
                raise
        for name in required:
            if name not in made:
                raise _Mismatch(f"has no {name!r}")
        return kind(**made)

    return decode


def _decoded_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise _Mismatch(f"is not base64 ({error})") from None
    raise _Mismatch('is neither text nor {"base64": …}')
