"""Label and field selectors: parsed once per request, matched per object (contract §3.10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import InvalidSelector

_TOKEN = re.compile(r"\s*(==|!=|=|!|<|>|\(|\)|,|[^\s=!<>(),]+)")
_KEY = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PUNCTUATION = frozenset(("==", "!=", "=", "!", "<", ">", "(", ")", ","))


class Selectable(Protocol):
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def fields(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a selector. ``operator`` is one of = != in notin exists ! > <."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator in ("=", "in"):
            return value is not None and value in self.values
        if self.operator in ("!=", "notin"):
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        return value is not None and _compare(value, self.operator, next(iter(self.values)))


def _compare(value: str, operator: str, bound: str) -> bool:
    try:
        left, right = int(value), int(bound)
    except ValueError:
        return False
    return left > right if operator == ">" else left < right


class _LabelParser:
    """Recursive descent over the tokens of one label selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while match := _TOKEN.match(text, position):
            self._tokens.append(match.group(1))
            position = match.end()
        if text[position:].strip():
            raise InvalidSelector(f"unable to parse requirement: unexpected character in {text!r}")
        self._position = 0

    def parse(self) -> list[Requirement]:
        if not self._tokens:
            return []
        requirements = [self._requirement()]
        while (token := self._next()) is not None:
            if token != ",":
                raise InvalidSelector(f"found '{token}', expected: ',' or 'end of string'")
            requirements.append(self._requirement())
        return requirements

    def _peek(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _next(self) -> str | None:
        token = self._peek()
        self._position += 1
        return token

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return Requirement(self._key(), "!")
        key = self._key()
        operator = self._peek()
        if operator is None or operator == ",":
            return Requirement(key, "exists")
        self._next()
        if operator in ("in", "notin"):
            return Requirement(key, operator, self._set())
        if operator in ("=", "==", "!="):
            return Requirement(key, "!=" if operator == "!=" else "=", frozenset((self._value(),)))
        if operator in ("<", ">"):
            return Requirement(key, operator, frozenset((self._integer(),)))
        raise InvalidSelector(
            f"unable to parse requirement: found '{operator}', "
            "expected: in, notin, =, ==, !=, gt, lt or end of string"
        )

    def _key(self) -> str:
        token = self._next()
        if token is None or token in _PUNCTUATION:
            raise InvalidSelector(f"unable to parse requirement: found '{token or ''}', expected: identifier")
        if not _KEY.fullmatch(token):
            raise InvalidSelector(
                f'unable to parse requirement: <nil>: Invalid value: "{token}": name part must consist of '
                "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
                "character"
            )
        return token

    def _value(self) -> str:
        token = self._peek()
        if token is None or token == ",":
            return ""
        self._next()
        if token in _PUNCTUATION:
            raise InvalidSelector(f"unable to parse requirement: found '{token}', expected: identifier")
        return _checked_value(token)

    def _integer(self) -> str:
        value = self._value()
        if not re.fullmatch(r"-?\d+", value):
            raise InvalidSelector(
                f'unable to parse requirement: values[0]: Invalid value: "{value}": '
                "for 'Gt', 'Lt' operators, the value must be an integer"
            )
        return value

    def _set(self) -> frozenset[str]:
        opening = self._next()
        if opening != "(":
            raise InvalidSelector(f"unable to parse requirement: found '{opening or ''}', expected: '('")
        values: set[str] = set()
        current = ""
        while True:
            token = self._next()
            if token is None:
                raise InvalidSelector("unable to parse requirement: found '', expected: ',' or ')'")
            if token in (",", ")"):
                values.add(current)
                current = ""
                if token == ")":
                    return frozenset(values)
            elif token in _PUNCTUATION or current:
                raise InvalidSelector(f"unable to parse requirement: found '{token}', expected: ',' or ')'")
            else:
                current = _checked_value(token)


def _checked_value(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise InvalidSelector(
            f'unable to parse requirement: values[0]: Invalid value: "{value}": a valid label must be an '
            "empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
            "with an alphanumeric character"
        )
    return value


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector. Raises InvalidSelector."""
    return tuple(_LabelParser(text).parse())


def _split_fields(text: str) -> list[str]:
    r"""Split at commas; a backslash keeps the next character (\\ \, \=)."""
    parts = re.findall(r"(?:\\.|[^,\\])+", text)
    if "".join(parts).count("\\") != text.count("\\"):
        raise InvalidSelector(f"invalid field selector: {text!r}: dangling escape")
    return parts


def parse_fields(text: str, known: Callable[[str], bool]) -> tuple[Requirement, ...]:
    """Parse a field selector; ``known`` tells whether a field may be selected on. Raises InvalidSelector."""
    requirements = []
    for part in _split_fields(text):
        match = re.fullmatch(r"\s*([^=!\\]*?)\s*(==|!=|=)((?:\\.|[^=\\])*)", part)
        if not match:
            raise InvalidSelector(f"invalid selector: '{part}'; can't understand '{part}'")
        name, operator, value = match.groups()
        if not known(name):
            raise InvalidSelector(
                f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
        unescaped = re.sub(r"\\(.)", r"\1", value)
        requirements.append(Requirement(name, "!=" if operator == "!=" else "=", frozenset((unescaped,))))
    return tuple(requirements)


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a list or a watch selects. An absent field counts as the empty string."""

    labels: Sequence[Requirement] = ()
    fields: Sequence[Requirement] = ()

    @property
    def is_empty(self) -> bool:
        return not self.labels and not self.fields

    def matches(self, item: Selectable) -> bool:
        if self.labels and not all(term.matches(item.labels) for term in self.labels):
            return False
        if not self.fields:
            return True
        values = item.fields
        return all((values.get(term.key, "") in term.values) is (term.operator == "=") for term in self.fields)

    def exact_field(self, name: str) -> str | None:
        """The value that ``name`` must have, if the selector pins it to one."""
        for term in self.fields:
            if term.key == name and term.operator == "=":
                return next(iter(term.values))
        return None


EVERYTHING = Predicate()
