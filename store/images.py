"""Images of the state on their way in or out: files in one folder of a member (contract §23).

The application decides when an image is made, kept, installed and forgotten; this is only where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Final, Protocol

from raft import sqlite
from raft.core.types import ConfState, Snapshot
from store.cluster import decode_conf_state
from store.state import META, read_applied

CONF_STATE_KEY: Final = b"confState"


class Images(Protocol):
    """Where images are kept. An image is named by a path that only this object can follow."""

    def new(self) -> Path:
        """A free name for an image to be sent."""
        ...

    def discard(self, image: Path) -> None:
        """Forget an image; one that is gone already is no error."""
        ...

    async def conf_state(self, image: Path) -> ConfState:
        """The configuration that an image holds: it belongs to the image's position, not to the present."""
        ...

    async def check(self, image: Path) -> Snapshot:
        """The position and configuration of a received image. Raises OSError when it is no sound one."""
        ...

    async def keep(self, image: Path, snapshot: Snapshot) -> None:
        """Keep a received image, durably, as the accepted one of ``snapshot``."""
        ...

    def accepted(self, snapshot: Snapshot) -> Path | None:
        """The kept image of ``snapshot``, or None when there is none."""
        ...

    def forget_before(self, snapshot: Snapshot) -> None:
        """Accepted images older than ``snapshot`` are not needed any more."""
        ...

    def clear(self) -> None:
        """Forget all images: what a crash left."""
        ...


class ImageFolder:
    """Images as SQLite files in a folder that exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def new(self) -> Path:
        self._made += 1
        path = self.folder / f"outgoing-{self._made}.snap"
        path.unlink(missing_ok=True)
        return path

    def discard(self, image: Path) -> None:
        image.unlink(missing_ok=True)

    async def conf_state(self, image: Path) -> ConfState:
        return await asyncio.to_thread(_conf_state_in, image)

    async def check(self, image: Path) -> Snapshot:
        return await asyncio.to_thread(_check_image, image)

    async def keep(self, image: Path, snapshot: Snapshot) -> None:
        await asyncio.to_thread(_move_durably, image, self._accepted_path(snapshot))

    def accepted(self, snapshot: Snapshot) -> Path | None:
        path = self._accepted_path(snapshot)
        return path if path.exists() else None

    def forget_before(self, snapshot: Snapshot) -> None:
        newest = self._accepted_path(snapshot)
        for older in self.folder.glob("accepted-*.snap"):
            if older < newest:  # names sort by index
                older.unlink(missing_ok=True)

    def clear(self) -> None:
        for leftover in self.folder.glob("*.snap"):
            leftover.unlink()

    def _accepted_path(self, snapshot: Snapshot) -> Path:
        return self.folder / f"accepted-{snapshot.index:016x}.snap"


def conf_state_of(db: sqlite3.Connection) -> ConfState:
    """The configuration stored in an open state database."""
    row = db.execute("SELECT value FROM bucket WHERE name = ? AND key = ?", (META, CONF_STATE_KEY)).fetchone()
    return decode_conf_state(row[0])


def _conf_state_in(path: Path) -> ConfState:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return conf_state_of(db)


def _move_durably(source: Path, target: Path) -> None:
    """Rename, and make the new name survive a power loss (M37)."""
    source.replace(target)
    sqlite.sync_directory(target.parent)


def _check_image(path: Path) -> Snapshot:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise OSError(f"the image is damaged: {problems[0]}")
        index, term = read_applied(path)
        return Snapshot(index, term, _conf_state_in(path))
    except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
        raise OSError(f"this is no image of a state: {error}") from error
