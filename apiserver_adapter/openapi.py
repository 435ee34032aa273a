"""The least OpenAPI v3 that makes kubectl validate on the server: one patch operation per kind (contract §3.3)."""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web

from watchcache.codec import dump

from .negotiation import json_response, text_not_found
from .resources import Kind, Registry

_QUERY_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")


class OpenApi:
    """Answers /openapi/v3 and its documents; /openapi/v2 is not served."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def respond(self, request: web.Request) -> web.Response | None:
        """The response, or None if the path is not below /openapi."""
        parts = request.path.strip("/").split("/")
        if parts[0] != "openapi":
            return None
        if parts == ["openapi", "v3"]:
            return json_response(request, self._index())
        if parts[1:2] == ["v3"]:
            document = self._document(parts[2:])
            if document is not None:
                return json_response(request, document)
        return text_not_found()

    def _index(self) -> dict[str, Any]:
        paths = {}
        for group, versions in self._registry.group_versions().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                digest = hashlib.sha256(dump(self._document(path.split("/")))).hexdigest().upper()
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return {"paths": paths}

    def _document(self, path: list[str]) -> dict[str, Any] | None:
        group, version = ("", path[1]) if path[0] == "api" and len(path) == 2 else ("", "")
        if path[0] == "apis" and len(path) == 3:
            group, version = path[1], path[2]
        kinds = self._registry.of(group, version)
        if not kinds:
            return None
        paths: dict[str, Any] = {}
        schemas: dict[str, Any] = {}
        for kind in kinds:
            paths |= _paths(kind)
            schemas[_schema_name(kind)] = _schema(kind)
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.32.0"},
            "paths": paths,
            "components": {"schemas": schemas},
        }


def _gvk(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _schema_name(kind: Kind) -> str:
    package = kind.group.split(".")[0] or "core"
    return f"io.k8s.api.{package}.{kind.version}.{kind.kind}"


def _paths(kind: Kind) -> dict[str, Any]:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    operation = {
        "x-kubernetes-group-version-kind": _gvk(kind),
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY_PARAMETERS],
        "responses": {"200": {"description": "OK"}},
    }
    return {f"{root}{scope}/{kind.plural}/{{name}}": {"patch": operation}}


def _schema(kind: Kind) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"{kind.kind} is served as a free-form object.",
        "x-kubernetes-group-version-kind": [_gvk(kind)],
        "properties": {
            "apiVersion": {"type": "string", "description": ""},
            "kind": {"type": "string", "description": ""},
            "metadata": {"type": "object", "description": ""},
        },
    }
