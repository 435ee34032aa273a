"""What the compiled modules must not do, since compiling changes what it means (docs/decisions/0005)."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


SETUP = runpy.run_path(str(ROOT / "setup.py"))
SOURCES: list[str] = SETUP["SOURCES"]


def functions(path: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_there_is_something_to_compile() -> None:
    assert len(SOURCES) > 50
    assert [path for path in SOURCES if not (ROOT / path).exists()] == []


def test_installing_from_the_sources_compiles_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVORUM_COMPILE", raising=False)
    assert SETUP["extensions"]() == []


@pytest.mark.parametrize("path", SOURCES)
def test_a_name_for_an_exception_is_of_one_kind_in_a_function(path: str) -> None:
    """A compiled coroutine keeps one variable for each name, of the kind that came first: another kind is a
    TypeError there, and the call was never answered."""
    wrong = []
    for function in functions(path):
        kinds: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
                kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
        wrong += [f"{function.name}: {name}" for name, found in kinds.items() if len(found) > 1]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES)
def test_no_class_wants_to_be_referred_to_weakly(path: str) -> None:
    """Objects of compiled classes cannot be."""
    assert "weakref_slot" not in (ROOT / path).read_text()


@pytest.mark.parametrize("path", SOURCES)
def test_nothing_is_awaited_in_a_finally(path: str) -> None:
    """Where an exception is being handled further out, a compiled coroutine takes that for its own: it raises it
    at the first await of a ``finally``, and the rest is not done. A database was left open so, and its process did
    not end."""
    pausing = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
    wrong = [
        node.lineno
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Try)
        and any(isinstance(inner, pausing) for step in node.finalbody for inner in ast.walk(step))
    ]
    assert wrong == []
