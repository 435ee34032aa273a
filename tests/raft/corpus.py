"""``python -m tests.raft.corpus DIR``: replay a corpus of raft cases and print every difference.

DIR is laid out like ``cases/raft`` of the reference data (its README describes the formats). Files may be
absent. ``DIR/tools/drive.py`` replays the interactions where it exists, ``tests.raft.replay`` otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from raft.core import ConfChangeError, ConfChangeProblem, quorum
from raft.core.confchange import Changer
from raft.core.status import peer_status
from raft.core.tracker import ProgressTracker

from .adapter import CoreAdapter, changes_from
from .replay import replay_file
from .views import View, conf_state_view

Outcome = tuple[str, str | None]
"""The name of a case, and what is wrong with it."""

# --- quorum


def _distinct(case: View) -> list[int]:
    ids = [int(word) for key in ("cfg", "cfgj") for word in case["args"].get(key, []) if word != "zero"]
    return list(dict.fromkeys(ids))


def _halves(case: View) -> tuple[list[int], list[int]]:
    args = case["args"]
    first = [int(word) for word in args.get("cfg", [])]
    return first, [int(word) for word in args.get("cfgj", []) if word != "zero"]


def check_committed(case: View) -> str | None:
    """The commit index, and that it does not depend on how the configuration is written down."""
    first, second = _halves(case)
    words = zip(_distinct(case), case["args"].get("idx", []), strict=True)
    given = {voter: None if word == "_" else int(word) for voter, word in words}
    acked = {voter: index for voter, index in given.items() if index is not None}
    result = quorum.joint_committed_index(first, second, acked)
    expected = case["parsed"]["index"]
    if result != (quorum.NO_BOUND if expected is None else expected):
        return f"committed {result}, expected {expected}"
    if {str(voter): index for voter, index in given.items()} != case["parsed"]["acked"]:
        return f"acknowledgements read as {given}"
    variants = [
        quorum.joint_committed_index(second, first, acked),
        min(result, quorum.joint_committed_index(first, first, acked)) if not second else result,
        min(result, quorum.joint_committed_index(first, (), acked)) if not second else result,
    ]
    for voter, index in acked.items():
        if index < result:
            lowered = [acked | {voter: value} for value in (max(index - 1, 0), 0)]
            variants += [quorum.joint_committed_index(first, second, one) for one in lowered]
    return None if set(variants) == {result} else f"committed {result}, but in another form {variants}"


def check_vote(case: View) -> str | None:
    """The result of a vote, and that it does not depend on the order of the halves."""
    first, second = _halves(case)
    words = zip(_distinct(case), case["args"].get("votes", []), strict=True)
    votes = {voter: word == "y" for voter, word in words if word != "_"}
    results = {
        quorum.joint_vote_result(first, second, votes),
        quorum.joint_vote_result(second, first, votes),
    }
    expected = {case["parsed"]["result"]}
    got = {result.name.lower() for result in results}
    return None if got == expected else f"vote {got}, expected {expected}"


def run_quorum(path: Path) -> Iterator[Outcome]:
    checks = {"committed": check_committed, "vote": check_vote}
    for case in _records(path):
        yield _name(case), _guarded(lambda case=case: checks[case["cmd"]](case))  # type: ignore[misc]


# --- configuration changes

_PROBLEM_WORDS: Mapping[ConfChangeProblem, str] = {
    ConfChangeProblem.ALREADY_JOINT: "already joint",
    ConfChangeProblem.NOT_JOINT: "non-joint",
    ConfChangeProblem.SIMPLE_IN_JOINT: "simple config change in joint",
    ConfChangeProblem.NO_VOTERS: "zero-voter",
    ConfChangeProblem.REMOVES_ALL_VOTERS: "removed all voters",
    ConfChangeProblem.MORE_THAN_ONE_VOTER: "more than one voter",
}


def run_confchange(path: Path) -> Iterator[Outcome]:
    trackers: dict[str, ProgressTracker] = {}
    for case in _records(path):
        tracker = trackers.setdefault(case["file"], ProgressTracker(10, 0))
        check = lambda case=case, tracker=tracker: check_change(case, tracker)  # noqa: E731
        yield _name(case), _guarded(check)


def check_change(case: View, tracker: ProgressTracker) -> str | None:
    """Apply one case to ``tracker`` and compare the configuration and the progress, or the kind of error."""
    changer, changes = Changer(tracker, case["last_index"]), changes_from(case.get("changes", []))
    expected = case["parsed"]
    try:
        if case["cmd"] == "simple":
            result = changer.simple(changes)
        elif case["cmd"] == "enter-joint":
            auto_leave = case["args"].get("autoleave") == ["true"]
            result = changer.enter_joint(changes, auto_leave=auto_leave)
        else:
            result = changer.leave_joint()
    except ConfChangeError as error:
        wanted = expected.get("error")
        fits = wanted is not None and _PROBLEM_WORDS.get(error.problem, "") in wanted
        return None if fits else f"error {error}, expected {wanted or expected}"
    if "error" in expected:
        return f"no error, expected {expected['error']}"
    tracker.config, tracker.progress = result
    if conf_state_view(tracker.config.conf_state()) != expected["config"]:
        return f"configuration {tracker.config}, expected {expected['config']}"
    got = [_progress_view(tracker, node) for node in tracker.progress]
    return None if got == expected["progress"] else f"progress {got}, expected {expected['progress']}"


def _progress_view(tracker: ProgressTracker, node: int) -> View:
    peer = peer_status(node, tracker.progress[node])
    return {
        "id": node,
        "state": peer.state.name.lower(),
        "match": peer.match,
        "next": peer.next,
        "learner": peer.is_learner,
        "paused": peer.paused,
        "pending_snapshot": peer.pending_snapshot,
        "recent_active": peer.recent_active,
        "inflight": peer.inflight,
        "inflight_full": peer.inflight_full,
    }


# --- interactions


def run_interaction(path: Path, drive: ModuleType | None) -> str | None:
    """One file is one case: after a difference the cluster is not the recorded one any more."""
    if drive is None:
        _, difference = replay_file(path)
        return None if difference is None else str(difference)

    def make(node_id: int, config: View, snapshot: View | None, emit: Any) -> CoreAdapter:
        return CoreAdapter(node_id, config, snapshot, emit, drive.ProposalDropped, drive.StepPeerNotFound)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that harness leaves its file open
        differences = drive.run_file(str(path), make, role_events=True, notes=True)
    return str(differences[0]) if differences else None


def load_drive(directory: Path) -> ModuleType | None:
    """The corpus' own harness, if it has one."""
    path = directory / "tools" / "drive.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("corpus_drive", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- all of it


def run_corpus(directory: Path, *, use_drive: bool = True) -> Iterator[Outcome]:
    """Every case of a corpus, one outcome each; a crash is an outcome too."""
    for name, run in (("quorum.jsonl", run_quorum), ("confchange.jsonl", run_confchange)):
        if (directory / name).exists():
            yield from run(directory / name)
    drive = load_drive(directory) if use_drive else None
    for path in sorted((directory / "interaction").glob("*.jsonl")):
        yield path.name, _guarded(lambda path=path: run_interaction(path, drive))  # type: ignore[misc]


def _guarded(check: Callable[[], str | None]) -> str | None:
    """A crash of the core is what is wrong with a case; it must not hide the other cases."""
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _records(path: Path) -> Iterator[View]:
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)


def _name(case: View) -> str:
    return f"{case['file']}:{case['line']} {case['cmd']}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("usage: python -m tests.raft.corpus DIR\n")
        return 2
    passed = failed = 0
    for name, problem in run_corpus(Path(arguments[0])):
        if problem is None:
            passed += 1
        else:
            failed += 1
            sys.stdout.write(f"{name}: {problem}\n")
    sys.stdout.write(f"{passed} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
