"""Rules of the repository that no linter knows."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum import cli

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("raft", "store", "watchcache", "apiserver_adapter", "chaos", "kvorum", "tests")
LINES_MAX = {"tests": 900}
LINES_MAX_ELSEWHERE = 760
SOURCES = [
    path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "etcdpb" not in path.parts
]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_no_file_is_longer_than_one_can_hold_in_mind() -> None:
    too_long = []
    for path in SOURCES:
        relative = path.relative_to(ROOT)
        if len(path.read_text().splitlines()) > LINES_MAX.get(relative.parts[0], LINES_MAX_ELSEWHERE):
            too_long.append(str(relative))
    assert too_long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text().strip() and not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = cli.build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert [name for name in commands or () if name not in readme] == []


def test_generated_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed (the dev extra brings it)")
    protos = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "store/etcdpb").glob("*.proto"))]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}",
         f"--grpc_python_out={tmp_path}", *protos],
        cwd=ROOT, check=True, env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    for made in sorted((tmp_path / "store/etcdpb").glob("*.py")):
        assert made.read_text() == (ROOT / "store/etcdpb" / made.name).read_text(), made.name
