"""Do watches keep their promises? The table of checkers contract §3, over recorded watches.

What a watch alone can break (order, atomicity, bookmarks) is checked on its stream; what it may not lose or make
up is checked against the oracle, as far as that reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, pairwise

from chaos.check import words
from chaos.check.history import Ending, Event, KeyValue, Watch, WatchRequest, WatchResponse
from chaos.check.replay import Replay, wanted


class Guarantee(StrEnum):
    FILTER = "filter"
    ORDERED = "ordered"
    UNIQUE = "unique"
    ATOMIC = "atomic"
    BOOKMARKABLE = "bookmarkable"
    RELIABLE = "reliable"
    RESUMABLE = "resumable"
    PREV_KV = "prev_kv"
    IS_CREATE = "is_create"
    STALE_START = "stale start"
    FUTURE_START = "future start"
    CANCELED = "canceled"
    AGREEMENT = "agreement"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken guarantee; ``number`` is the watch's."""

    guarantee: str
    number: int
    explanation: str

    def __str__(self) -> str:
        return f"watch {self.number}: {self.guarantee}: {self.explanation}"


@dataclass(frozen=True, slots=True)
class Oracle:
    """What a history says about its watches from outside: the replay (None: somebody else wrote too, or there is
    no legal order), and every revision that somebody may have compacted to."""

    replay: Replay | None = None
    compactions: Sequence[int] = ()
    ending: Ending | None = None


@dataclass(slots=True)
class _Stream:
    """One watch, its fragments put together, and what its responses so far amount to."""

    watch: Watch
    oracle: Oracle
    responses: list[WatchResponse] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.responses = list(reassembled(self.watch.responses))
        self.events = [event for response in self.responses for event in response.events]

    @property
    def asked(self) -> WatchRequest:
        return self.watch.request

    @property
    def created(self) -> WatchResponse | None:
        return next((response for response in self.responses if response.created), None)


_Finding = tuple[Guarantee, str]


def check_watches(watches: Iterable[Watch], oracle: Oracle) -> list[Violation]:
    """Everything that is wrong with the watches of a history, in order of their numbers."""
    found: list[Violation] = []
    streams = [_Stream(watch, oracle) for watch in sorted(watches, key=lambda each: each.request.number)]
    for stream in streams:
        for rule in _RULES:
            found += [Violation(kind, stream.asked.number, text) for kind, text in rule(stream)]
    found += _disagreements(streams)
    return found


def reassembled(responses: Iterable[WatchResponse]) -> Iterator[WatchResponse]:
    """Responses whole again: a fragment continues in the next message, up to one that is none."""
    parts: tuple[Event, ...] = ()
    for response in responses:
        if response.fragment:
            parts += response.events
        elif parts:
            yield replace(response, events=parts + response.events)
            parts = ()
        else:
            yield response


def _shape(stream: _Stream) -> Iterator[_Finding]:
    """Created comes first and once, nothing comes after the end, a header is as new as its events."""
    ended = False
    for number, response in enumerate(stream.responses):
        if ended:
            yield Guarantee.CANCELED, f"it was cancelled, and then got {_shown(response)}"
        if response.created != (number == 0):
            yield (
                Guarantee.STREAM,
                f"response {number} is {_shown(response)}; the first, and no other, is 'created'",
            )
        if response.events and response.revision < max(event.revision for event in response.events):
            yield Guarantee.STREAM, f"{_shown(response)} is newer than the header, revision {response.revision}"
        ended = ended or response.canceled


def _filter(stream: _Stream) -> Iterator[_Finding]:
    for event in stream.events:
        if not wanted(stream.asked, event):
            what = words.interval(stream.asked.key, stream.asked.end)
            filters = " without puts" * stream.asked.no_put + " without deletes" * stream.asked.no_delete
            yield Guarantee.FILTER, f"it watches {what}{filters} and got {describe(event)}"
        if event.prev is not None and not stream.asked.prev_kv:
            yield Guarantee.FILTER, f"it asked for no previous versions and got one with {describe(event)}"


def _ordered(stream: _Stream) -> Iterator[_Finding]:
    seen: set[tuple[int, bytes]] = set()
    before: Event | None = None
    for event in stream.events:
        if before is not None and event.revision < before.revision:
            yield Guarantee.ORDERED, f"{describe(event)} came after {describe(before)}"
        if (event.revision, event.kv.key) in seen:
            yield Guarantee.UNIQUE, f"{describe(event)} came twice"
        seen.add((event.revision, event.kv.key))
        before = event


def _atomic(stream: _Stream) -> Iterator[_Finding]:
    before: int | None = None
    for response in stream.responses:
        if response.events:
            if response.events[0].revision == before:
                yield Guarantee.ATOMIC, f"revision {before} was split over two responses"
            before = response.events[-1].revision


def _bookmarkable(stream: _Stream) -> Iterator[_Finding]:
    mark, newest = 0, 0
    for response in stream.responses:
        for event in response.events:
            if event.revision <= mark:
                yield Guarantee.BOOKMARKABLE, f"{describe(event)} came after a notification of progress to {mark}"
            newest = max(newest, event.revision)
        if response.is_progress:
            if response.revision < mark:
                yield Guarantee.BOOKMARKABLE, f"progress went back from {mark} to {response.revision}"
            if response.revision < newest:
                yield (
                    Guarantee.BOOKMARKABLE,
                    f"progress to {response.revision} was notified after an event of revision {newest}",
                )
            mark = max(mark, response.revision)


def _start(stream: _Stream) -> Iterator[_Finding]:
    """Starts in the past, in what is compacted, and in the future."""
    start = stream.asked.start_revision
    if not start:
        now = stream.created.revision if stream.created is not None else 0
        for event in stream.events:
            if event.revision <= now:
                yield Guarantee.RELIABLE, f"it starts behind revision {now} and got {describe(event)}"
        return
    for event in stream.events:
        if event.revision < start:
            kind = Guarantee.FUTURE_START if _is_future(stream) else Guarantee.RESUMABLE
            yield kind, f"it starts at revision {start} and got {describe(event)}"
    for response in stream.responses:
        if response.is_progress and response.revision < start - 1:
            yield (
                Guarantee.FUTURE_START,
                f"it starts at revision {start} and was notified of progress to {response.revision}",
            )
    replay, created = stream.oracle.replay, stream.created
    if replay is None or created is None:
        return
    compacted = replay.compacted(created.revision)
    told = [response for response in stream.responses if response.events or response.is_progress]
    if start < compacted and told:
        text = (
            f"it starts at revision {start}, which was compacted (to {compacted}) before it was created at "
            f"revision {created.revision}; instead of being cancelled it got {_shown(told[0])}"
        )
        yield Guarantee.STALE_START, text


def _is_future(stream: _Stream) -> bool:
    return stream.created is not None and stream.asked.start_revision > stream.created.revision


def _cancelled(stream: _Stream) -> Iterator[_Finding]:
    """A watch is cancelled for compaction only if what it needs next may have been compacted."""
    created = stream.created
    needed = stream.asked.start_revision or (created.revision + 1 if created is not None else 0)
    for response in stream.responses:
        if response.events:
            needed = response.events[-1].revision + 1
        elif response.is_progress:
            needed = max(needed, response.revision + 1)
        if response.canceled and response.compact_revision:
            to = response.compact_revision
            if to not in stream.oracle.compactions:
                yield Guarantee.CANCELED, f"it was cancelled for a compaction to {to} that nobody asked for"
            elif needed >= to:
                yield Guarantee.CANCELED, f"it was cancelled for a compaction to {to}, and needs only {needed} on"


def _complete(stream: _Stream) -> Iterator[_Finding]:
    """Exactly the events of the oracle between the first revision it must show and the last it has shown."""
    replay, span = stream.oracle.replay, _span(stream)
    if replay is None or span is None:
        return
    first, last = span
    expected = list(replay.events(stream.asked, first, last))
    due = {(event.revision, event.kv.key): event for event in expected}
    got = {(event.revision, event.kv.key): event for event in stream.events if first <= event.revision <= last}
    for place, event in got.items():
        if place not in due:
            yield Guarantee.RELIABLE, f"it got {describe(event)}, and nothing like it happened at that revision"
        else:
            yield from _content(stream, event, due[place])
    for place, event in due.items():
        if place not in got:
            text = f"{describe(event)} did not come, though it was told of revision {last}"
            is_first = bool(stream.asked.start_revision) and event is expected[0]
            yield Guarantee.RESUMABLE if is_first else Guarantee.RELIABLE, text


def _span(stream: _Stream) -> tuple[int, int] | None:
    """The revisions of which it has promised everything, as far as the oracle goes; None for none."""
    created, replay = stream.created, stream.oracle.replay
    if created is None or created.canceled or replay is None:
        return None
    first = stream.asked.start_revision or created.revision + 1
    told = [event.revision for event in stream.events]
    told += [response.revision for response in stream.responses if response.is_progress]
    last = min(max(told, default=0), replay.last)
    return (first, last) if first <= last else None


def _content(stream: _Stream, event: Event, due: Event) -> Iterator[_Finding]:
    if event.is_put != due.is_put:
        yield Guarantee.RELIABLE, f"it got {describe(event)} instead of {describe(due)}"
        return
    if event.is_create != due.is_create:
        existed = "did not exist" if due.prev is None else f"was {words.text(due.prev.value)}"
        marked = "is marked as a creation" if event.is_create else "is not marked as a creation"
        yield Guarantee.IS_CREATE, f"{describe(event)} {marked}, and the key {existed} before"
    elif event.is_put and event.kv != due.kv:
        yield Guarantee.RELIABLE, f"it got {words.key_value(event.kv)} instead of {words.key_value(due.kv)}"
    if not stream.asked.prev_kv or event.prev == due.prev:
        return
    if event.prev is None and any(to >= event.revision for to in stream.oracle.compactions):
        return  # the version before was compacted, or may have been
    yield Guarantee.PREV_KV, f"{describe(event)} came with {_previous(event.prev)}; it was {_previous(due.prev)}"


def _delivered(stream: _Stream) -> Iterator[_Finding]:
    """What a run waited for at its end has come."""
    ending = stream.oracle.ending
    if ending is None or stream.asked.number not in ending.watches:
        return
    told = [event.revision for event in stream.events]
    told += [response.revision for response in stream.responses if response.is_progress]
    if stream.asked.start_revision:
        told.append(stream.asked.start_revision - 1)
    elif stream.created is not None:
        told.append(stream.created.revision)
    last = max(told, default=0)
    if last < ending.revision:
        yield (
            Guarantee.RELIABLE,
            f"it has come to revision {last} only, and was given time up to {ending.revision}",
        )


def _existing(stream: _Stream) -> Iterator[_Finding]:
    """Nothing is told of revisions that do not exist."""
    replay = stream.oracle.replay
    newest = max((response.revision for response in stream.responses), default=0)
    if replay is not None and newest > replay.newest:
        yield Guarantee.STREAM, f"it was told of revision {newest}, and the last one is {replay.newest}"


def _disagreements(streams: Sequence[_Stream]) -> Iterator[Violation]:
    """Two watches that show the same key at the same revision show the same."""
    first: dict[tuple[int, bytes], tuple[int, Event]] = {}
    for stream in streams:
        for event in stream.events:
            number, known = first.setdefault((event.revision, event.kv.key), (stream.asked.number, event))
            if (known.is_put, known.kv) != (event.is_put, event.kv):
                text = f"it got {_full(event)}; watch {number} got {_full(known)}"
                yield Violation(Guarantee.AGREEMENT, stream.asked.number, text)
    yield from _reordered(streams)


def _reordered(streams: Sequence[_Stream]) -> Iterator[Violation]:
    """All watches show the changes of one revision in the order of the one that shows most of them."""
    most: dict[int, tuple[int, list[bytes]]] = {}
    for stream in streams:
        for revision, keys in _by_revision(stream):
            if len(keys) > len(most.get(revision, (0, ()))[1]):
                most[revision] = (stream.asked.number, keys)
    places = {revision: {key: place for place, key in enumerate(keys)} for revision, (_, keys) in most.items()}
    for stream in streams:
        for revision, keys in _by_revision(stream):
            place = places[revision]
            for one, other in pairwise(key for key in keys if key in place):
                if place[one] > place[other]:
                    text = f"it got {words.text(one)} before {words.text(other)} of revision {revision}"
                    text += f"; watch {most[revision][0]} the other way round"
                    yield Violation(Guarantee.AGREEMENT, stream.asked.number, text)


def _by_revision(stream: _Stream) -> Iterator[tuple[int, list[bytes]]]:
    """The keys of each revision with several changes, as the stream showed them."""
    for revision, events in groupby(stream.events, key=lambda event: event.revision):
        keys = [event.kv.key for event in events]
        if len(keys) > 1:
            yield revision, keys


_RULES: tuple[Callable[[_Stream], Iterator[_Finding]], ...] = (
    _shape, _filter, _ordered, _atomic, _bookmarkable, _start, _cancelled, _complete, _delivered, _existing,
)  # fmt: skip


def describe(event: Event) -> str:
    """An event in words."""
    kind = "put" if event.is_put else "deletion"
    value = f" = {words.text(event.kv.value)}" if event.is_put else ""
    return f"the {kind} of {words.text(event.kv.key)}{value} at revision {event.revision}"


def _full(event: Event) -> str:
    return words.key_value(event.kv) if event.is_put else describe(event)


def _previous(kv: KeyValue | None) -> str:
    return "no previous version" if kv is None else f"previously {words.key_value(kv)}"


def _shown(response: WatchResponse) -> str:
    if response.events:
        return describe(response.events[0])
    if response.canceled:
        return f"a cancellation (compacted to {response.compact_revision})"
    return "'created'" if response.created else f"progress to {response.revision}"
