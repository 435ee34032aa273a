"""The pages about the core say what the code says."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from raft.core import roles

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "raft.md").read_text()
TESTS = (ROOT / "docs" / "raft-tests.md").read_text()
UNIT_CASES = range(1, 233)
MISTAKES = range(1, 50)


def test_the_role_diagram_is_the_table() -> None:
    match = re.search(r"<!-- roles:begin -->\n```mermaid\n(.*?)```\n<!-- roles:end -->", PAGE, re.DOTALL)
    assert match is not None
    assert match[1] == roles.mermaid()


def places() -> list[tuple[str, str]]:
    """File and function of every row of the page's table."""
    rows = re.findall(r"^\|[^|]*\|[^|]*\| `(\w+)\.py` \| (.*) \|$", PAGE, re.MULTILINE)
    return [(module, name) for module, names in rows for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("module", "name"), places())
def test_every_named_function_exists(module: str, name: str) -> None:
    found: object = importlib.import_module(f"raft.core.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def defined_tests() -> dict[str, set[str]]:
    """The test functions of each file of this repository's tests."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = {node.name for node in functions if node.name.startswith("test_")}
        found[path.relative_to(ROOT / "tests").as_posix()] = names
    return found


def rows(prefix: str) -> dict[int, str]:
    """The last cell of every row of the tests page that starts with ``prefix`` and a number."""
    lines = re.findall(rf"^\| {prefix}(\d+) \|(.*)\|$", TESTS, re.MULTILINE)
    return {int(number): cell.strip() for number, cell in lines}


def test_every_test_named_in_the_page_exists() -> None:
    defined = defined_tests()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TESTS)
    assert named
    assert [(file, test) for file, test in named if test not in defined.get(file, set())] == []


def test_every_unit_case_and_mistake_has_a_row_with_tests_or_a_reason() -> None:
    for prefix, numbers in (("UC", UNIT_CASES), ("M", MISTAKES)):
        cells = rows(prefix)
        assert sorted(cells) == list(numbers)
        assert all(len(cell) > 5 for cell in cells.values())


def test_every_numbered_test_is_listed_in_its_row() -> None:
    """A new test for a case must be added to the page."""
    cells = {"uc": rows("UC"), "m": rows("M")}
    missing = []
    for file, names in defined_tests().items():
        if not file.startswith("raft/"):
            continue
        for name in names:
            numbers = [("uc", number) for number in re.findall(r"uc(\d{3})", name)]
            numbers += [("m", number) for number in re.findall(r"(?<![a-z])m(\d\d)(?=_)", name)]
            for prefix, number in numbers:
                if f"{file}::{name}" not in cells[prefix][int(number)]:
                    missing.append((prefix + number, name))
    assert missing == []
