"""The one place where a run's clients write down what they did, on one clock."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace
from typing import TextIO

from chaos.check.history import Ending, Operation, Outcome, Setting, WatchRequest, WatchResponse
from chaos.check.recordfile import Writer
from chaos.wire import recorded_request


class Recorder:
    """Numbers clients and watches, counts, and appends every record to a file at once."""

    def __init__(self, file: TextIO, setting: Setting) -> None:
        self._writer = Writer(file, setting)
        self._last_ns = 0
        self._clients = itertools.count(1)
        self._watches = itertools.count(1)
        self.counts: Counter[str] = Counter()
        self.revision = setting.start_revision
        """The newest revision that any answer has shown."""
        self.restarts: Counter[str] = Counter()
        """For each endpoint how often its member may have lost what it had not yet stored."""

    def now(self) -> int:
        """Nanoseconds; every call gives a later moment, so that no two records claim the same one."""
        self._last_ns = max(self._last_ns + 1, time.monotonic_ns())
        return self._last_ns

    def new_client(self) -> int:
        return next(self._clients)

    def new_watch(self) -> int:
        return next(self._watches)

    def operation(self, operation: Operation) -> None:
        self.counts["operations"] += 1
        self.counts[str(operation.outcome)] += 1
        if operation.outcome is Outcome.OK and operation.answer is not None:
            self.revision = max(self.revision, operation.answer.revision)
        self._writer.operation(replace(operation, request=recorded_request(operation.request)))

    def watch(self, request: WatchRequest) -> None:
        self.counts["watches"] += 1
        self._writer.watch(request)

    def response(self, watch: int, response: WatchResponse) -> None:
        self.counts["events"] += len(response.events)
        self._writer.response(watch, response)

    def ending(self, ending: Ending) -> None:
        self._writer.ending(ending)
