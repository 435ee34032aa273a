"""Failures as Kubernetes Status objects: storage errors to code, reason and details (contract §1.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchcache import errors as storage
from watchcache.backend import BackendError

from .resources import Kind

Status = dict[str, Any]


def status_object(
    code: int,
    reason: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Status:
    """A failure Status. HTTP status and ``code`` are the same number."""
    status: Status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": dict(metadata or {}),
        "status": "Failure",
        "message": message,
        "code": code,
    }
    if reason:
        status["reason"] = reason
    if details:
        status["details"] = dict(details)
    return status


@dataclass
class ApiError(Exception):
    """A request that fails with a Status; ``details`` as in the API (name, kind, causes, retryAfterSeconds...)."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def status(self) -> Status:
        return status_object(self.code, self.reason, self.message, self.details, self.metadata)


def _named(kind: Kind, name: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name}
    if kind.group:
        details["group"] = kind.group
    return {**details, "kind": kind.plural, **more}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.group_resource} "{name}" not found', _named(kind, name))


def already_exists(kind: Kind, name: str, *, terminating: bool = False) -> ApiError:
    message = f'{kind.group_resource} "{name}" already exists'
    if terminating:
        message = f"object is being deleted: {message}"
    return ApiError(409, "AlreadyExists", message, _named(kind, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: Kind, name: str, why: str = MODIFIED) -> ApiError:
    message = f'Operation cannot be fulfilled on {kind.group_resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _named(kind, name))


def forbidden(kind: Kind, name: str, why: str, causes: Sequence[Mapping[str, str]] = ()) -> ApiError:
    details = _named(kind, name)
    if causes:
        details["causes"] = list(causes)
    return ApiError(403, "Forbidden", f'{kind.group_resource} "{name}" is forbidden: {why}', details)


def cause(reason: str, field_path: str, message: str) -> dict[str, str]:
    return {"reason": reason, "message": message, "field": field_path}


def invalid(group: str, kind: str, name: str, causes: Sequence[Mapping[str, str]]) -> ApiError:
    """422 with one cause per problem."""
    qualified = f"{kind}.{group}" if group else kind
    problems = [f"{item['field']}: {item['message']}" for item in causes]
    text = problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": list(causes)}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)


def method_not_allowed(kind: Kind, verb: str) -> ApiError:
    details = {"group": kind.group, "kind": kind.plural} if kind.group else {"kind": kind.plural}
    message = f'{verb} is not supported on resources of kind "{kind.group_resource}"'
    return ApiError(405, "MethodNotAllowed", message, details)


def too_large(limit: int) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(
        accepted
    )
    return ApiError(415, "UnsupportedMediaType", message)


def _invalid_options(error: storage.InvalidOptions) -> ApiError:
    causes = [cause(item.reason, item.field, item.message) for item in error.causes]
    return invalid("meta.k8s.io", "ListOptions", "", causes)


def _expired(error: storage.Expired) -> ApiError:
    metadata = {"continue": error.continue_token} if error.continue_token else {}
    return ApiError(410, "Expired", str(error), metadata=metadata)


def _too_large_version(error: storage.TooLargeResourceVersion) -> ApiError:
    details: dict[str, Any] = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    }
    if error.retry_after_s:
        details["retryAfterSeconds"] = error.retry_after_s
    return ApiError(504, "Timeout", f"Timeout: {error}", details)


def _internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details)


def internal_error(error: BaseException) -> ApiError:
    """For a defect of ours: never silent, never a traceback on the wire."""
    return _internal(f"{type(error).__name__}: {error}")


def to_api_error(error: Exception, kind: Kind | None = None, name: str = "") -> ApiError | None:
    """The ApiError for a storage or backend error; None for anything else."""
    if isinstance(error, ApiError):
        return error
    if kind is not None:
        named = _about_object(error, kind, name)
        if named is not None:
            return named
    match error:
        case storage.InvalidOptions():
            return _invalid_options(error)
        case storage.Expired():
            return _expired(error)
        case storage.TooLargeResourceVersion():
            return _too_large_version(error)
        case storage.NotReady():
            return ApiError(429, "TooManyRequests", str(error), {"retryAfterSeconds": error.retry_after_s})
        case storage.InvalidContinue() | storage.InvalidSelector():
            return bad_request(str(error))
        case storage.CorruptObject():
            return _internal(str(error))
        case BackendError():
            return _store_failure(error)
        case storage.StorageError():
            return ApiError(500, "", str(error))
    return None


def _store_failure(error: BackendError) -> ApiError:
    """The store's own text, unless it was our time that ran out. A write may still commit."""
    if "DeadlineExceeded" in error.text:
        message = "Timeout: request did not complete within requested timeout - context deadline exceeded"
        return ApiError(504, "Timeout", message)
    return ApiError(500, "", error.text)


def _about_object(error: Exception, kind: Kind, name: str) -> ApiError | None:
    match error:
        case storage.NotFound():
            return not_found(kind, name)
        case storage.AlreadyExists():
            return already_exists(kind, name, terminating=error.terminating)
        case storage.InvalidObject():
            return conflict(kind, name, str(error))
    return None
