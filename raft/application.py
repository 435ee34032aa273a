"""The state machine as the driver sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from raft.core.types import ConfChangeV2, ConfState, Entry, EntryType, Snapshot

APPLY_SLICE_ENTRIES: Final = 256
"""After so many entries the apply task lets the loop run: heartbeats come before throughput."""


class Application(Protocol):
    """Applies committed entries, in order, exactly once each beyond ``applied_index``.

    Apply is synchronous and deterministic. What it returns goes to the waiter of the proposal, if it waits
    here; an exception *returned* is a refusal and is raised there. An exception *raised* is a bug and ends
    the process.
    """

    @property
    def applied_index(self) -> int:
        """The last entry applied, in memory."""
        ...

    @property
    def durable_index(self) -> int:
        """The last entry whose effects would survive a crash without the log; the log is kept above it."""
        ...

    @property
    def conf_state(self) -> ConfState:
        """The configuration in force at ``applied_index``, kept with it."""
        ...

    def apply(self, entry: Entry, payload: bytes, wanted: bool) -> Any:
        """Apply a proposal's payload. ``wanted`` is false when nobody waits here for the result."""
        ...

    def apply_empty(self, entry: Entry) -> None:
        """A leader's first entry, or a refused configuration change: only the position moves."""
        ...

    def check_conf_change(self, entry: Entry, change: ConfChangeV2, payload: bytes) -> Exception | None:
        """Whether the application accepts this change; a refusal must be the same on every member."""
        ...

    def apply_conf_change(self, entry: Entry, conf_state: ConfState, payload: bytes) -> Any:
        """An accepted change took effect: store the new configuration with the position."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether ``room`` would return at once."""
        ...

    async def room(self) -> None:
        """Return once the application can take more: backpressure when it cannot keep up with its disk."""
        ...

    async def make_durable(self) -> None:
        """Raise ``durable_index`` to what is applied now."""
        ...

    async def make_image(self) -> tuple[Snapshot, Path]:
        """A consistent image, with the position and configuration it holds. Raises OSError."""
        ...

    def release_image(self, image: Path) -> None:
        """An image that ``make_image`` made is not needed any more."""
        ...

    async def accept_image(self, image: Path, snapshot: Snapshot) -> None:
        """Check a received image against its announcement and keep it, durably, until it is installed.

        Raises OSError or Refused when it is not what it should be; the state is then as before.
        """
        ...

    async def install_image(self, snapshot: Snapshot) -> None:
        """Replace everything by the accepted image of ``snapshot``. A crash in the middle is mended at the
        next start: the log names the snapshot first, and the image is kept until it is in place (contract §23).
        """
        ...


def slice_end(entries: Sequence[Entry], start: int) -> int:
    """A slice ends after a configuration change, or after so many entries that the loop must run."""
    limit = min(start + APPLY_SLICE_ENTRIES, len(entries))
    for end in range(start, limit):
        if entries[end].type is not EntryType.NORMAL:
            return end + 1
    return limit
