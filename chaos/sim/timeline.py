"""A run as one self-contained page: members as rows over time, what they were, what they said, what went wrong."""

from __future__ import annotations

import html as text
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from chaos.sim.options import described
from chaos.sim.trace import Record

if TYPE_CHECKING:
    from chaos.sim.run import Report
    from chaos.sim.world import World

MESSAGES_MAX: Final = 6000
"""Messages on one page, of the kinds that explain most; a longer run leaves out heartbeats first."""
_MARKS: Final = {"commit", "crash", "start", "leader", "truncate", "snapshot", "config", "exit", "vote"}


def html(world: World, report: Report) -> str:
    """The page of a run that has been played. No external resource is needed to read it."""
    records = world.trace.records
    data = {
        "seed": report.seed,
        "end": round(world.loop.now, 4),
        "options": described(world.options) or "a calm run",
        "violation": report.violation,
        "members": [_member(number, records, world.loop.now) for number in world.members],
        "messages": _messages(records),
        "faults": [[round(r.at, 4), r.kind, r.text] for r in records if r.kind in ("fault", "heal", "liveness")],
        "clients": [[round(r.at, 4), *_operation(r.text)] for r in records if r.kind == "client"],
        "cuts": _cuts(records, _healed_at(records, world.loop.now)),
    }
    page = resources.files("chaos.sim").joinpath("timeline.html").read_text(encoding="utf-8")
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    title = text.escape(f"Kvorum: simulation of seed {report.seed}")
    return page.replace("__TITLE__", title).replace("__DATA__", encoded)


def _member(number: int, records: Sequence[Record], end: float) -> dict[str, Any]:
    """Spans of a member (what it was, from when to when) and its marks."""
    spans: list[list[Any]] = []
    marks: list[list[Any]] = []
    role, term, since = "", 0, 0.0

    def close(at: float) -> None:
        if role and at > since:
            spans.append([round(since, 4), round(at, 4), role, term])

    for record in records:
        if record.node != number:
            continue
        if record.kind in _MARKS:
            marks.append([round(record.at, 4), record.kind, record.text])
        change = _role_after(record)
        if change is not None:
            close(record.at)
            role, term, since = change[0], change[1] if change[1] >= 0 else term, record.at
    close(end)
    return {"id": number, "spans": spans, "marks": marks}


def _role_after(record: Record) -> tuple[str, int] | None:
    """The role and term that a record puts a member into; term -1 is "as before"."""
    if record.kind == "role":
        name, _, term = record.text.rpartition(" t")
        return name, int(term)
    if record.kind == "crash":
        return "down", -1
    if record.kind == "start":
        return "starting", -1
    if record.kind == "serve":
        found = re.search(r"term (\d+)", record.text)
        return "follower", int(found.group(1)) if found else -1
    return None


def _messages(records: Sequence[Record]) -> list[list[Any]]:
    """[sent, arrived, from, to, what, lost]; heartbeats are left out where there are too many."""
    found = [r for r in records if r.kind in ("message", "lost")]
    if len(found) > MESSAGES_MAX:
        found = [r for r in found if not r.text.startswith("heartbeat")]
    return [
        [round(r.sent or r.at, 4), round(r.at, 4), r.peer, r.node, r.text, int(r.kind == "lost")]
        for r in found[:MESSAGES_MAX]
    ]


def _operation(told: str) -> tuple[str, str]:
    """Outcome, and who asked whom for what."""
    what, _, outcome = told.rpartition(" ")
    return outcome, what


def _healed_at(records: Sequence[Record], end: float) -> float:
    return next((record.at for record in records if record.kind == "liveness"), end)


def _cuts(records: Sequence[Record], end: float) -> list[list[Any]]:
    """Partitions as [from, to, text]: until their links were healed."""
    cuts: list[list[Any]] = []
    for record in records:
        if record.kind == "fault" and record.text.startswith(("partition", "depose")):
            seconds = re.search(r"for ([\d.]+) s", record.text)
            length = float(seconds.group(1)) if seconds else 0.0
            cuts.append([round(record.at, 4), round(min(end, record.at + length), 4), record.text])
    return cuts
