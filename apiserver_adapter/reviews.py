"""Authorization and identity reviews: everything is allowed to the one user there is."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from . import body
from .discovery import REVIEWS
from .errors import ApiError
from .negotiation import json_response
from .paths import ResourcePath

_USER = {"username": "system:admin", "groups": ["system:masters", "system:authenticated"]}
_ALL_RULES = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def review_kind(path: ResourcePath) -> str | None:
    """The review kind that a path names, if it names one."""
    for group, version, plural, kind, _ in REVIEWS:
        if (group, version, plural) == (path.group, path.version, path.plural) and not path.name:
            return kind
    return None


async def respond(request: web.Request, path: ResourcePath, kind: str) -> web.Response:
    """Answer a review. Raises ApiError 405 for anything but POST."""
    if request.method != "POST":
        raise ApiError(405, "MethodNotAllowed", f"{kind} can only be created")
    review, _ = await body.read_object(request, "Ignore")
    answer: dict[str, Any] = {
        "kind": kind,
        "apiVersion": f"{path.group}/{path.version}",
        "metadata": review.get("metadata") or {"creationTimestamp": None},
    }
    if kind == "SelfSubjectReview":
        answer["status"] = {"userInfo": _USER}
    elif kind == "SelfSubjectRulesReview":
        answer |= {"spec": review.get("spec") or {}, "status": _ALL_RULES}
    else:
        answer |= {"spec": review.get("spec") or {}, "status": {"allowed": True}}
    return json_response(request, answer, 201)
