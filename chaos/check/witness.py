"""What watches and reads of the past showed of single revisions: evidence of which legal order is the true one.

Several orders may be legal where an answer was lost, or where its header shows a later revision. Only one that
agrees with everything that was shown may be held against a store; and if none agrees, the store is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from chaos.check.etcd_model import EtcdModel, State
from chaos.check.history import Answer, Event, Found, Operation, Outcome, Range, Watch, WatchRequest
from chaos.check.replay import changes, wanted
from chaos.check.watch import reassembled

_Shown = Mapping[bytes, Event]
_NO_EVENT: Final[_Shown] = {}
_NOTHING: Final = Range(b"")
"""No key is empty, so whatever the store holds, this read finds nothing."""


class Witness:
    """Everything that was shown of the revisions after ``start_revision``. The search asks at each step.

    ``newest`` is the newest revision that anybody was told of: it, or a later one, exists by ``end``, an operation
    that belongs to the history as its last.
    """

    def __init__(self, start_revision: int, operations: Sequence[Operation], watches: Sequence[Watch]) -> None:
        self._first = start_revision + 1
        self._last = start_revision + len(operations)  # each makes one revision at most
        self._watched: defaultdict[int, list[tuple[WatchRequest, _Shown]]] = defaultdict(list)
        self._read: defaultdict[int, list[tuple[Range, Found]]] = defaultdict(list)
        told = [start_revision]
        for watch in watches:
            self._note_watch(watch)
            told += [response.revision for response in watch.responses]
        for operation in operations:
            if operation.answer is None:
                continue
            told.append(operation.answer.revision)
            asked, result = operation.request, operation.answer.result
            if isinstance(asked, Range) and isinstance(result, Found) and (asked.revision or asked.serializable):
                self._read[asked.revision or operation.answer.revision].append((asked, result))
        end = max((each.end or each.call for each in operations), default=0) + 1
        client = min((each.client for each in operations), default=0) - 1
        self.newest = max(told)
        self.end = Operation(client, end, end + 1, _NOTHING, Outcome.OK, Answer(0, Found()))

    def _note_watch(self, watch: Watch) -> None:
        """What it did not show of the revisions it was told of says as much as what it did."""
        responses = list(reassembled(watch.responses))
        created = next((each for each in responses if each.created), None)
        if created is None or created.canceled:
            return
        shown: dict[int, dict[bytes, Event]] = {}
        for response in responses:
            for event in response.events:
                shown.setdefault(event.revision, {})[event.kv.key] = event
        last = max([*shown, *(each.revision for each in responses if each.is_progress)], default=0)
        first = watch.request.start_revision or created.revision + 1
        for revision in range(max(first, self._first), min(last, self._last) + 1):
            self._watched[revision].append((watch.request, shown.get(revision, _NO_EVENT)))

    def agrees(self, model: EtcdModel, before: State, after: State) -> bool:
        """Whether the step from one revision to the next was shown like this, wherever it was shown."""
        revision = after.revision
        if any(model.find(after.slots, asked) != found for asked, found in self._read.get(revision, ())):
            return False
        watched = self._watched.get(revision)
        if not watched:
            return True
        made = list(changes(model.keys, before.slots, after.slots, revision))
        return all(_is_shown(asked, shown, made) for asked, shown in watched)


def _is_shown(asked: WatchRequest, shown: _Shown, made: list[Event]) -> bool:
    """Exactly what the watch asked for. A previous version that is missing may have been compacted."""
    due = [event for event in made if wanted(asked, event)]
    return len(due) == len(shown) and all(
        (got := shown.get(event.kv.key)) is not None
        and got.is_put == event.is_put
        and (not event.is_put or got.kv == event.kv)
        and got.prev in (None, event.prev)
        for event in due
    )
