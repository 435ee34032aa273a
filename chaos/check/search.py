"""The search for a legal order: Wing and Gong's, with Lowe's memo, without recursion.

Calls and returns lie in one list by time. From the head on, every call before the first return may come next. One
that fits the state is taken out of the list with its return; when none fits, the last one taken is put back and
the search goes on behind it. A (set of taken operations, state) seen before leads nowhere new.

An operation of unknown outcome never returns: it may be taken at any point after its call, or be left over. That
is the set of states of checkers contract §1.1 (applied, not applied), visited one by one and as far as needed: the
search prefers "not (yet) applied".
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from chaos.check.history import Operation

StateT = TypeVar("StateT", bound=Hashable)

_CLOCK_EVERY: Final = 1024
"""Steps between two looks at the clock."""


class Verdict(StrEnum):
    OK = "ok"
    ILLEGAL = "illegal"
    UNKNOWN = "unknown"
    """The budget was used up. Not a pass: the history is too concurrent to be judged."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much searching is allowed; a limit of None is none. Steps alone keep a result reproducible."""

    steps: int | None = None
    seconds: float | None = None


class Part(Protocol[StateT]):
    """Operations that are checked together, in order of their calls, and the model of what they act on."""

    @property
    def name(self) -> str: ...

    @property
    def operations(self) -> Sequence[Operation]: ...

    @property
    def initial(self) -> StateT: ...

    def step(self, state: StateT, index: int) -> StateT | None:
        """The state after operation ``index``; None when its answer is impossible in ``state``."""
        ...

    @property
    def twins(self) -> Sequence[Hashable]:
        """For each operation its class of unknown operations that can stand for each other; None: alone."""
        ...

    @property
    def ranks(self) -> Sequence[int]:
        """For each operation that returned a number that never falls along a legal order; 0: it has none."""
        ...

    def may_help(self, state: StateT, index: int, pending: Sequence[int], floor: int) -> bool:
        """Whether it makes sense to take unknown operation ``index`` now, with ``pending`` those that return and
        could be next, and ``floor`` the lowest rank to come (0: none). False is a promise: any legal order has a
        legal twin in which it comes later or never."""
        ...

    def why(self, state: StateT, index: int) -> str:
        """What ``step`` had against it, in words."""
        ...


@dataclass(frozen=True, slots=True)
class Found(Generic[StateT]):
    """What the search came to. ``order`` is a legal order, or the longest legal one found; ``state`` is the state
    after it; ``stuck`` are the operations that could come next and do not fit, the one that must come first;
    ``lowest`` is one of the lowest rank that is not in the order, -1 if there is none."""

    verdict: Verdict
    steps: int
    order: Sequence[int]
    state: StateT
    stuck: Sequence[int] = ()
    lowest: int = -1


class _Taken(NamedTuple, Generic[StateT]):
    """One decision, and what to restore when it is taken back. ``node`` < 0 is unknown operation ``~node``."""

    node: int
    state: StateT
    first: int
    window: int
    applied: int


@dataclass(slots=True)
class _List:
    """Calls and returns by time as a doubly linked list; 0 is its head, the last node its tail."""

    index: list[int]
    is_call: list[bool]
    partner: list[int]
    time: list[int]
    next: list[int]
    previous: list[int]

    def lift(self, call: int) -> None:
        for node in (call, self.partner[call]):
            before, after = self.previous[node], self.next[node]
            self.next[before], self.previous[after] = after, before

    def unlift(self, call: int) -> None:
        for node in (self.partner[call], call):
            self.next[self.previous[node]] = self.previous[self.next[node]] = node


def _listed(operations: Sequence[Operation]) -> _List:
    """At equal times calls come before returns, which forbids the least."""
    marks = []
    for index, operation in enumerate(operations):
        if operation.end is not None:
            marks += [(operation.call, False, index), (operation.end, True, index)]
    marks.sort()
    size = len(marks) + 2
    made = _List(
        [-1] * size, [False] * size, [0] * size, [0] * size, list(range(1, size + 1)), list(range(-1, size - 1))
    )
    calls: dict[int, int] = {}
    for node, (moment, is_return, index) in enumerate(marks, start=1):
        made.index[node], made.is_call[node], made.time[node] = index, not is_return, moment
        if is_return:
            made.partner[calls[index]] = node
        else:
            calls[index] = node
    return made


def _elders(twins: Sequence[Hashable]) -> list[int]:
    """For each the place of the twin before it; -1 where there is none."""
    last: dict[Hashable, int] = {}
    elders = []
    for number, twin in enumerate(twins):
        elders.append(last.get(twin, -1) if twin is not None else -1)
        last[twin] = number
    return elders


class _Ranks:
    """How many operations of each rank are to come, and the lowest such rank."""

    def __init__(self, ranks: Sequence[int]) -> None:
        counts = Counter(rank for rank in ranks if rank)
        self._sorted = [*sorted(counts), 0]
        self._place = {rank: place for place, rank in enumerate(self._sorted)}
        self._left = [counts[rank] for rank in self._sorted]
        self._left[-1] = 1  # a sentinel
        self._lowest = 0

    @property
    def floor(self) -> int:
        return self._sorted[self._lowest]

    def take(self, rank: int) -> None:
        if rank:
            self._left[self._place[rank]] -= 1
            while not self._left[self._lowest]:
                self._lowest += 1

    def give_back(self, rank: int) -> None:
        if rank:
            place = self._place[rank]
            self._left[place] += 1
            self._lowest = min(self._lowest, place)


class _Search(Generic[StateT]):
    def __init__(self, part: Part[StateT], budget: Budget, ranked: bool) -> None:
        self._part = part
        self._budget = budget
        self._deadline = None if budget.seconds is None else time.monotonic() + budget.seconds
        self._nodes = _listed(part.operations)
        self._unknown = [i for i, operation in enumerate(part.operations) if operation.end is None]
        self._elder = _elders([part.twins[index] for index in self._unknown])
        self._rank = [
            rank if ranked and o.end is not None else 0
            for o, rank in zip(part.operations, part.ranks, strict=True)
        ]
        self._ranks = _Ranks(self._rank)
        self._tail = len(self._nodes.index) - 1
        self._state = part.initial
        self._first = self._head_index()
        self._window = 0  # operations taken, as bits counted from the first one that is not
        self._applied = 0  # unknown operations taken
        self._stack: list[_Taken[StateT]] = []
        self._seen: set[tuple[int, int, int, StateT]] = set()
        self._steps = 0
        self._best: Found[StateT] | None = None

    def _head_index(self) -> int:
        return self._nodes.index[self._nodes.next[0]]

    def run(self) -> Found[StateT]:
        nodes = self._nodes
        resume = nodes.next[0]
        while nodes.next[0] != self._tail:
            if self._is_spent():
                return self._result(Verdict.UNKNOWN)
            if self._take_from(resume):
                resume = nodes.next[0]
                continue
            self._note_dead_end()
            if not self._stack:
                return self._result(Verdict.ILLEGAL)
            resume = self._take_back()
        return Found(Verdict.OK, self._steps, self._order(), self._state)

    def _is_spent(self) -> bool:
        if self._budget.steps is not None and self._steps >= self._budget.steps:
            return True
        return self._deadline is not None and self._steps % _CLOCK_EVERY == 0 and time.monotonic() > self._deadline

    def _take_from(self, node: int) -> bool:
        """Take the next operation that fits, at or behind ``node``; unknown ones come after all others."""
        nodes, unknown = self._nodes, self._unknown
        if node >= 0:
            while nodes.is_call[node]:
                if self._take(node, nodes.index[node]):
                    return True
                node = nodes.next[node]
            number = 0
        else:
            number = -node  # behind unknown operation ~node
        if number >= len(unknown):
            return False
        pending, limit = self._pending()
        while number < len(unknown):
            index = unknown[number]
            if self._part.operations[index].call > limit:
                return False  # in order of calls: nor may the later ones
            if (
                self._is_open(number)
                and self._part.may_help(self._state, index, pending, self._ranks.floor)
                and self._take(~number, index)
            ):
                return True
            number += 1
        return False

    def _is_open(self, number: int) -> bool:
        """Whether an unknown operation can be taken: not taken yet, and its twins of earlier calls are."""
        elder = self._elder[number]
        return not self._applied >> number & 1 and (elder < 0 or bool(self._applied >> elder & 1))

    def _pending(self) -> tuple[list[int], int]:
        """The operations called before the first return, and the time of that."""
        nodes, pending = self._nodes, []
        node = nodes.next[0]
        while nodes.is_call[node]:
            pending.append(nodes.index[node])
            node = nodes.next[node]
        return pending, nodes.time[node]

    def _take(self, node: int, index: int) -> bool:
        self._steps += 1
        rank = self._rank[index]
        if rank and rank != self._ranks.floor:
            return False
        state = self._part.step(self._state, index)
        if state is None or (node < 0 and state == self._state):
            return False
        first, window, applied = self._first, self._window, self._applied
        if node < 0:
            applied |= 1 << ~node
        else:
            self._nodes.lift(node)
            if index == first:
                first = self._head_index()
                window = window >> (first - index) if first >= 0 else 0
            else:
                window |= 1 << (index - first)
        key = (first, window, applied, state)
        if key in self._seen:
            if node >= 0:
                self._nodes.unlift(node)
            return False
        self._seen.add(key)
        self._ranks.take(rank)
        self._stack.append(_Taken(node, self._state, self._first, self._window, self._applied))
        self._state, self._first, self._window, self._applied = state, first, window, applied
        return True

    def _take_back(self) -> int:
        """Undo the last decision; returns where to go on."""
        taken = self._stack.pop()
        self._state, self._first = taken.state, taken.first
        self._window, self._applied = taken.window, taken.applied
        if taken.node < 0:
            return taken.node
        self._ranks.give_back(self._rank[self._nodes.index[taken.node]])
        self._nodes.unlift(taken.node)
        return self._nodes.next[taken.node]

    def _order(self) -> list[int]:
        return [self._unknown[~t.node] if t.node < 0 else self._nodes.index[t.node] for t in self._stack]

    def _note_dead_end(self) -> None:
        """Keep the longest legal order, and who could have gone on from there and did not fit."""
        if self._best is not None and len(self._stack) <= len(self._best.order):
            return
        stuck, _ = self._pending()
        stuck.sort(key=self._ends)  # the one that returns first must come first
        order, floor = self._order(), self._ranks.floor
        left = set(range(len(self._rank))).difference(order) if floor else set()
        lowest = min((index for index in left if self._rank[index] == floor), default=-1)
        self._best = Found(Verdict.ILLEGAL, self._steps, order, self._state, stuck, lowest)

    def _ends(self, index: int) -> int:
        end = self._part.operations[index].end
        assert end is not None
        return end

    def _result(self, verdict: Verdict) -> Found[StateT]:
        best = self._best or Found(verdict, self._steps, self._order(), self._state)
        return replace(best, verdict=verdict, steps=self._steps)


def search(part: Part[StateT], budget: Budget, *, ranked: bool = True) -> Found[StateT]:
    """Look for a legal order of ``part``'s operations.

    Without ranks the verdict is the same and comes later, but the longest legal order then goes as far as the
    answers themselves allow, which makes the better explanation of an illegal history.
    """
    return _Search(part, budget, ranked).run()
