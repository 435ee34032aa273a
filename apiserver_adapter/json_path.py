"""The part of JSONPath that printer columns use: .a.b, ['a'], [0], [*], [?(@.type=="Ready")]."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_STEP = re.compile(
    r"""\.(?P<field>[^.\[\]]+)
      | \[['"](?P<quoted>[^'"]+)['"]\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(@\.(?P<key>[^=\s]+)\s*==\s*['"](?P<value>[^'"]*)['"]\)\]
    """,
    re.VERBOSE,
)


def first(path: str, obj: Any) -> Any:
    """The first value at ``path``, None where there is none or the path is beyond what is understood."""
    position, values = 0, [obj]
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return None
        position = match.end()
        values = [found for value in values for found in _step(value, match)]
    return values[0] if values else None


def _step(value: Any, match: re.Match[str]) -> Iterator[Any]:
    name = match["field"] or match["quoted"]
    if name is not None:
        if isinstance(value, dict) and name.replace("\\", "") in value:
            yield value[name.replace("\\", "")]
    elif not isinstance(value, list):
        return
    elif match["all"]:
        yield from value
    elif match["index"] is not None:
        position = int(match["index"])
        if -len(value) <= position < len(value):
            yield value[position]
    else:
        for item in value:
            if isinstance(item, dict) and str(item.get(match["key"])) == match["value"]:
                yield item
