"""List and watch options, and the rules that say which combinations exist (contract §1.2, §1.3)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from .codec import StoredObject
from .errors import Cause, InvalidContinue, InvalidOptions, InvalidResourceVersion
from .selectors import EVERYTHING, Predicate

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"
_MAX_UINT64 = 2**64 - 1
_MAX_INT64 = 2**63 - 1
_DIGITS_MAX = 1000  # leading zeros are fine, but no number to spend time on


@dataclass(frozen=True, slots=True)
class ListOptions:
    """``namespace`` None lists all. ``limit`` 0 means no limit. Strings are as on the wire, "" when unset."""

    namespace: str | None = None
    predicate: Predicate = EVERYTHING
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """``timeout_s`` is when the caller will end the watch, 0 if never: one bookmark is due shortly before.

    ``progress_notify`` turns the store's progress notifications into bookmarks on a watch without a cache.
    """

    namespace: str | None = None
    predicate: Predicate = EVERYTHING
    resource_version: str = ""
    match: str = ""
    send_initial_events: bool | None = None
    allow_bookmarks: bool = False
    timeout_s: float = 0.0
    progress_notify: bool = False


@dataclass(frozen=True, slots=True)
class ListResult:
    """``remaining`` is None where it is unknown (selectors) or nothing remains."""

    items: Sequence[StoredObject]
    resource_version: int
    continue_token: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ContinueToken:
    """``start`` is relative to the listed prefix and ends with NUL; ``resource_version`` -1: as of now."""

    resource_version: int
    start: str

    def encode(self) -> str:
        document = json.dumps(
            {"v": "meta.k8s.io/v1", "rv": self.resource_version, "start": self.start}, separators=(",", ":")
        )
        return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")

    @staticmethod
    def decode(text: str) -> ContinueToken:
        """Raises InvalidContinue."""
        try:
            padded = text + "=" * (-len(text) % 4)
            document = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            version, revision, start = document["v"], document["rv"], document["start"]
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as exc:
            raise InvalidContinue("it is not a token of this server") from exc
        if version != "meta.k8s.io/v1":
            raise InvalidContinue(f"server does not recognize this encoded version {version!r}")
        if type(revision) is not int or revision == 0 or abs(revision) > _MAX_INT64:
            raise InvalidContinue("incorrect encoded start resourceVersion")
        if not isinstance(start, str) or not start:
            raise InvalidContinue("encoded start key empty")
        if not _is_key(start):
            raise InvalidContinue("encoded start key is not valid text")
        if any(part in (".", "..") for part in start.strip("\0").split("/")) or start.startswith("/"):
            raise InvalidContinue(start)
        return ContinueToken(revision, start)


def _is_key(text: str) -> bool:
    """Whether the text can be the bytes of a key; those that are not UTF-8 are in it as lone low surrogates."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def parse_resource_version(text: str) -> int:
    """ "" and "0" are both 0; they mean different things to a list. Raises InvalidResourceVersion."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX or int(text) > _MAX_UINT64:
        raise InvalidResourceVersion(text)
    return int(text)


def check_continue_version(resource_version: int) -> None:
    """A continued list takes its version from the token. Raises InvalidContinue."""
    if resource_version > 0:
        raise InvalidContinue("specifying resource version is not allowed when using continue")


def _match_causes(match: str, resource_version: str, continue_token: str) -> list[Cause]:
    causes: list[Cause] = []
    field = "resourceVersionMatch"
    if not match:
        return causes
    if not resource_version:
        causes.append(
            Cause(
                field, "FieldValueForbidden", f"Forbidden: {field} is forbidden unless resourceVersion is provided"
            )
        )
    if continue_token:
        causes.append(
            Cause(field, "FieldValueForbidden", f"Forbidden: {field} is forbidden when continue is provided")
        )
    if match not in (EXACT, NOT_OLDER_THAN):
        causes.append(
            Cause(
                field,
                "FieldValueNotSupported",
                f'Unsupported value: "{match}": supported values: "{EXACT}", "{NOT_OLDER_THAN}"',
            )
        )
    if match == EXACT and resource_version == "0":
        causes.append(
            Cause(
                field,
                "FieldValueForbidden",
                f'Forbidden: {field} "exact" is forbidden for resourceVersion "0"',
            )
        )
    return causes


def validate_list(options: ListOptions, *, send_initial_events: bool = False) -> None:
    """Raises InvalidOptions."""
    causes = _match_causes(options.match, options.resource_version, options.continue_token)
    if send_initial_events:
        causes.append(
            Cause(
                "sendInitialEvents",
                "FieldValueForbidden",
                "Forbidden: sendInitialEvents is forbidden for list",
            )
        )
    if causes:
        raise InvalidOptions(causes)


def validate_watch(options: WatchOptions, *, continue_token: str = "") -> None:
    """Raises InvalidOptions."""
    causes = []
    field = "resourceVersionMatch"
    if options.send_initial_events is not None and options.match != NOT_OLDER_THAN:
        causes.append(
            Cause(
                field,
                "FieldValueForbidden",
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )
        )
    if options.match and options.send_initial_events is None:
        causes.append(
            Cause(
                field,
                "FieldValueForbidden",
                f"Forbidden: {field} is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if options.match and options.match != NOT_OLDER_THAN:
        causes.append(
            Cause(
                field,
                "FieldValueNotSupported",
                f'Unsupported value: "{options.match}": supported values: "{NOT_OLDER_THAN}"',
            )
        )
    if options.match and continue_token:
        causes.append(
            Cause(field, "FieldValueForbidden", f"Forbidden: {field} is forbidden when continue is provided")
        )
    if causes:
        raise InvalidOptions(causes)
