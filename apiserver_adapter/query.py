"""Query parameters of lists, watches and writes, parsed and checked."""

from __future__ import annotations

import random
import re

from aiohttp import web

from watchcache.errors import InvalidResourceVersion
from watchcache.options import ListOptions, WatchOptions, parse_resource_version
from watchcache.selectors import Predicate, parse_fields, parse_labels

from .errors import bad_request, cause, invalid
from .resources import Kind

_WATCH_TIMEOUT_S_MIN = 1800
_WATCH_TIMEOUT_S_MAX = 10 * 365 * 86_400  # an event loop's timer has a limit; no connection lives as long
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64_MAX = 2**63 - 1
_DIGITS_MAX = 64


def flag(request: web.Request, name: str) -> bool:
    """A boolean parameter; present without a value counts as true."""
    value = request.query.get(name)
    return value is not None and value not in ("0", "false", "False", "FALSE", "f", "F")


def _integer(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not text:
        return 0
    if not _INTEGER.fullmatch(text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text) > _DIGITS_MAX or int(text) > _INT64_MAX:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return max(0, int(text))


def predicate(request: web.Request, kind: Kind, name: str = "") -> Predicate:
    """The selectors of a request; a name in the path becomes a field selector.

    Raises:
        InvalidSelector, ApiError: 400.
    """

    def known(field: str) -> bool:
        builtin = field == "metadata.name" or (kind.namespaced and field == "metadata.namespace")
        return builtin or field in kind.selectable

    labels = parse_labels(request.query.get("labelSelector", ""))
    fields = parse_fields(request.query.get("fieldSelector", ""), known)
    if name:
        pinned = Predicate(fields=fields).exact_field("metadata.name")
        if pinned is not None and pinned != name:
            raise bad_request(f'fieldSelector metadata.name "{pinned}" does not match the name "{name}"')
        fields += parse_fields(f"metadata.name={name}", known)
    return Predicate(labels, fields)


def list_options(request: web.Request, kind: Kind, namespace: str) -> ListOptions:
    """Raises InvalidSelector, ApiError 400 for a malformed resourceVersion or limit."""
    version = request.query.get("resourceVersion", "")
    try:
        parse_resource_version(version)
    except InvalidResourceVersion as exc:
        raise bad_request(f"invalid resource version: {exc}") from exc
    return ListOptions(
        namespace or None,
        predicate(request, kind),
        version,
        request.query.get("resourceVersionMatch", ""),
        _integer(request, "limit"),
        request.query.get("continue", ""),
    )


def watch_options(request: web.Request, kind: Kind, namespace: str, name: str) -> WatchOptions:
    """Raises InvalidSelector, ApiError 400."""
    initial = request.query.get("sendInitialEvents")
    asked_s = _integer(request, "timeoutSeconds")
    timeout_s = float(asked_s or random.uniform(_WATCH_TIMEOUT_S_MIN, 2 * _WATCH_TIMEOUT_S_MIN))
    return WatchOptions(
        namespace or None,
        predicate(request, kind, name),
        request.query.get("resourceVersion", ""),
        request.query.get("resourceVersionMatch", ""),
        None if initial is None else flag(request, "sendInitialEvents"),
        flag(request, "allowWatchBookmarks"),
        min(timeout_s, _WATCH_TIMEOUT_S_MAX),
    )


def dry_run(request: web.Request) -> bool:
    """Raises ApiError 422 for any value but All."""
    values = request.query.getall("dryRun", [])
    return check_dry_run(values, "CreateOptions")


def check_dry_run(values: list[str], options_kind: str) -> bool:
    """Raises ApiError 422 for any value but All."""
    for value in values:
        if value != "All":
            text = f'Unsupported value: "{value}": supported values: "All"'
            causes = [cause("FieldValueNotSupported", "dryRun", text)]
            raise invalid("meta.k8s.io", options_kind, "", causes)
    return bool(values)


def field_manager(request: web.Request) -> str:
    """Who writes: the fieldManager parameter, else the User-Agent up to its first slash."""
    manager = request.query.get("fieldManager") or request.headers.get("User-Agent", "").split("/")[0]
    if len(manager) > 128:
        if "fieldManager" in request.query:
            text = "Too long: may not be more than 128 bytes"
            raise invalid("meta.k8s.io", "PatchOptions", "", [cause("FieldValueTooLong", "fieldManager", text)])
        manager = manager[:128]
    return manager or "unknown"


def field_validation(request: web.Request) -> str:
    """Ignore, Warn or Strict. Raises ApiError 422."""
    value = request.query.get("fieldValidation") or "Warn"
    if value not in ("Ignore", "Warn", "Strict"):
        text = f'Unsupported value: "{value}": supported values: "Ignore", "Warn", "Strict"'
        problem = cause("FieldValueNotSupported", "fieldValidation", text)
        raise invalid("meta.k8s.io", "CreateOptions", "", [problem])
    return value
