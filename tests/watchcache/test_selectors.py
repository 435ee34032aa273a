"""Label and field selectors (contract §3.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from watchcache.errors import InvalidSelector
from watchcache.selectors import Predicate, parse_fields, parse_labels


@dataclass
class Item:
    labels: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ("", {}, True),
        ("a", {"a": ""}, True),
        ("a", {"b": ""}, False),
        ("!a", {"b": ""}, True),
        ("!a", {"a": ""}, False),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (x,y)", {"a": "y"}, True),
        ("a in (x,,y)", {"a": ""}, True),
        ("a in (x,y)", {}, False),
        ("a notin (x,y)", {}, True),
        ("a notin (x,y)", {"a": "x"}, False),
        ("n>1", {"n": "2"}, True),
        ("n>1", {"n": "x"}, False),
        ("n<5", {"n": "5"}, False),
        (" a = b , c ", {"a": "b", "c": "d"}, True),
        ("a=b,c", {"a": "b"}, False),
        ("example.com/a=b", {"example.com/a": "b"}, True),
        ("in=notin", {"in": "notin"}, True),
        ("a=", {"a": ""}, True),
    ],
)
def test_label_selector_matches(selector: str, labels: dict[str, str], expected: bool) -> None:
    assert Predicate(parse_labels(selector)).matches(Item(labels)) is expected


@pytest.mark.parametrize("selector", ["a b", "a in x", "a in (x", ",", "=b", "a=b=c", "-a", "a=!", "n>x", "a=*"])
def test_malformed_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(InvalidSelector):
        parse_labels(selector)


@pytest.mark.parametrize(
    ("selector", "fields", "expected"),
    [
        ("f=v", {"f": "v"}, True),
        ("f==v", {"f": "w"}, False),
        ("f!=v", {}, True),
        ("f!=v", {"f": "v"}, False),
        ("f=", {}, True),
        (r"f=a\,b", {"f": "a,b"}, True),
        (r"f=a\=b", {"f": "a=b"}, True),
        (r"f=a\\b", {"f": "a\\b"}, True),
        ("f=a,g=b", {"f": "a", "g": "c"}, False),
    ],
)
def test_field_selector_matches(selector: str, fields: dict[str, str], expected: bool) -> None:
    predicate = Predicate(fields=parse_fields(selector, lambda name: True))
    assert predicate.matches(Item(fields=fields)) is expected


@pytest.mark.parametrize("selector", ["f", "f~v", "f=a\\"])
def test_malformed_field_selector_is_refused(selector: str) -> None:
    with pytest.raises(InvalidSelector):
        parse_fields(selector, lambda name: True)


def test_unknown_field_is_named_in_the_error() -> None:
    with pytest.raises(InvalidSelector, match=r'"spec\.x" is not a known field selector'):
        parse_fields("spec.x=1", lambda name: False)
