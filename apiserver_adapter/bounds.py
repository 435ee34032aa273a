"""What a document from outside may be: no deeper than code that recurses can follow, and made of valid text."""

from __future__ import annotations

from typing import Any, Final

from .errors import ApiError, bad_request

DEPTH_MAX: Final = 200
"""Levels of nesting. The deepest schemas in use have some dozens; copying recurses twice a level."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def too_deep() -> ApiError:
    return bad_request(f"the object provided is nested too deeply: more than {DEPTH_MAX} levels")


def check_depth(value: Any, limit: int = DEPTH_MAX) -> None:
    """Raises ApiError 400. Level by level, so that no depth is too much for the check itself."""
    level = [value]
    for _ in range(limit + 1):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return
    raise too_deep()


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def without_surrogates(value: Any) -> Any:
    """The value with U+FFFD for each lone surrogate, which no UTF-8 can carry (as Go decodes JSON)."""
    if isinstance(value, str):
        return _valid(value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_valid(name): without_surrogates(item) for name, item in value.items()}
    return value


def _valid(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_REPLACEMENT if "\ud800" <= char <= "\udfff" else char for char in text)
