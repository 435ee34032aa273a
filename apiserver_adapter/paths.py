"""From a URL path and method to what is asked of which resource (contract §3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A parsed resource path. ``namespace``, ``name`` and ``subresource`` are "" where absent."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False


def parse(path: str) -> ResourcePath | None:
    """The resource a path names, or None if it is not of that form. A trailing slash is tolerated."""
    parts = path.strip("/").split("/")
    if len(parts) >= 3 and parts[0] == "api":
        return _parse_rest("", parts[1], parts[2:])
    if len(parts) >= 4 and parts[0] == "apis":
        return _parse_rest(parts[1], parts[2], parts[3:])
    return None


def _parse_rest(group: str, version: str, rest: list[str]) -> ResourcePath | None:
    if rest[0] == "watch" and len(rest) > 1:
        found = _parse_rest(group, version, rest[1:])
        return replace(found, watch=True) if found else None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or "" in rest:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return ResourcePath(group, version, plural, namespace, name, subresource)
