"""What the object layer refuses or fails with. The API layer maps each class to one Status (contract §1.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


class StorageError(Exception):
    """Base of every error of the object layer."""


class NotFound(StorageError):
    """No object has this key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key not found: {key}")
        self.key = key


class AlreadyExists(StorageError):
    """An object with this key exists; ``terminating`` when that one is being deleted."""

    def __init__(self, key: str, *, terminating: bool = False) -> None:
        super().__init__(f"key exists: {key}")
        self.key = key
        self.terminating = terminating


class ResourceVersionSetOnCreate(StorageError):
    """A new object must not carry a resourceVersion."""

    def __init__(self) -> None:
        super().__init__("resourceVersion should not be set on objects to be created")


class InvalidKey(StorageError):
    """An empty key, or one that could leave its prefix."""

    def __init__(self, key: str) -> None:
        super().__init__(f"invalid key: {key!r}")


class InvalidObject(StorageError):
    """A precondition (uid, resourceVersion) does not hold for the stored object."""


class CorruptObject(StorageError):
    """The stored bytes cannot be decoded."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"unable to decode the object stored under {key}: {why}")
        self.key = key


class InvalidResourceVersion(StorageError):
    """The resourceVersion is not an unsigned decimal number."""

    def __init__(self, value: str) -> None:
        super().__init__(
            f'resourceVersion: Invalid value: "{value}": strconv.ParseUint: parsing "{value}": invalid syntax'
        )


class InvalidContinue(StorageError):
    """The continue token is not one of ours."""

    def __init__(self, why: str) -> None:
        super().__init__(f"invalid continue token: continue key is not valid: {why}")


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason of an invalid request: the field, the reason of the Status cause, and its text."""

    field: str
    reason: str
    message: str


class InvalidOptions(StorageError):
    """The list or watch options contradict each other (contract §1.2, §1.3)."""

    def __init__(self, causes: Sequence[Cause]) -> None:
        super().__init__(", ".join(f"{cause.field}: {cause.message}" for cause in causes))
        self.causes = tuple(causes)


class InvalidSelector(StorageError):
    """A label or field selector cannot be parsed, or names an unknown field."""


class Expired(StorageError):
    """The revision asked for is no longer available. ``continue_token`` lets a list go on inconsistently."""

    def __init__(self, message: str, continue_token: str = "") -> None:
        super().__init__(message)
        self.continue_token = continue_token


LIST_TOO_OLD = "The resourceVersion for the provided list is too old."
WATCH_TOO_OLD = "The resourceVersion for the provided watch is too old."
CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. "
    "Start a new list without the continue parameter, or use the continue token in this response "
    "to retrieve the remaining items as they are now; they need not be consistent with the items "
    "listed before."
)


class TooLargeResourceVersion(StorageError):
    """The revision asked for has not been reached. ``retry_after_s`` 0 means: no hint."""

    def __init__(self, asked: int, current: int, retry_after_s: int = 1) -> None:
        super().__init__(f"Too large resource version: {asked}, current: {current}")
        self.retry_after_s = retry_after_s


class NotReady(StorageError):
    """The cache has no complete state (yet, or again)."""

    def __init__(self, downtime_s: float, last_error: str = "") -> None:
        super().__init__("storage is (re)initializing" + (f": {last_error}" if last_error else ""))
        self.retry_after_s = retry_after_s(downtime_s)


def retry_after_s(downtime_s: float) -> int:
    """The Retry-After of a cache that has been down this long: exp(0.06 t), within 1..30 s."""
    return max(1, min(30, int(math.exp(min(0.06 * downtime_s, 5)))))
