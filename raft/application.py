"""The state machine as the driver sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from raft.core.types import ConfChangeV2, ConfState, Entry, Snapshot


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

    async def room(self) -> None:
        """Return once the application can take more: backpressure when it cannot keep up with its disk."""
        ...

    async def make_durable(self) -> None:
        """Raise ``durable_index`` to what is applied now."""
        ...

    async def make_image(self, path: Path) -> Snapshot:
        """Write a consistent image to ``path`` and return the position and configuration it holds.

        Raises OSError when it cannot be made.
        """
        ...

    async def check_image(self, path: Path) -> Snapshot:
        """The position and configuration that a received image holds; raises OSError when it is none."""
        ...

    async def install_image(self, path: Path, snapshot: Snapshot) -> None:
        """Replace everything by a received image. Idempotent: it is repeated when a crash interrupts it."""
        ...
