"""Discovery in both styles: plain documents, and one aggregated document with an ETag (contract §3.2)."""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web

from watchcache.codec import dump

from .negotiation import accept_clauses, json_response, text_not_found
from .resources import Kind, Registry

_SUBRESOURCES: dict[str, tuple[tuple[str, str, str], tuple[str, ...]]] = {
    # name: (group, version, kind of the answer; "" for the parent's), verbs
    "status": (("", "", ""), ("get", "patch", "update")),
    "scale": (("autoscaling", "v1", "Scale"), ("get", "patch", "update")),
    "finalize": (("", "", ""), ("update",)),
    "binding": (("", "v1", "Binding"), ("create",)),
    "eviction": (("policy", "v1", "Eviction"), ("create",)),
    "log": (("", "", ""), ("get",)),
}

# Review kinds are answered without being stored: group, version, plural, kind, namespaced.
REVIEWS: tuple[tuple[str, str, str, str, bool], ...] = (
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False),
    ("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", True),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False),
)

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def verbs_of(kind: Kind) -> list[str]:
    """The verbs of a stored kind, sorted."""
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    if kind.plural == "namespaces":
        verbs.remove("deletecollection")
    return verbs


class Discovery:
    """Answers the discovery paths for a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def groups(self) -> dict[str, list[str]]:
        """Versions per group: of stored kinds and of reviews."""
        groups = self._registry.group_versions()
        for group, version, *_ in REVIEWS:
            versions = groups.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return groups

    def respond(self, request: web.Request) -> web.Response | None:
        """The response, or None if the path is not one of discovery."""
        parts = request.path.strip("/").split("/")
        if parts in (["api"], ["apis"]):
            return self._root(request, parts[0])
        if len(parts) == 2 and parts[0] == "api":
            return self._resource_list(request, "", parts[1])
        if len(parts) == 2 and parts[0] == "apis":
            return self._group(request, parts[1])
        if len(parts) == 3 and parts[0] == "apis":
            return self._resource_list(request, parts[1], parts[2])
        return None

    def _root(self, request: web.Request, root: str) -> web.Response:
        for media_type, parameters in accept_clauses(request.headers.get("Accept", "")):
            version = parameters.get("v", "")
            if (
                media_type == "application/json"
                and parameters.get("as") == "APIGroupDiscoveryList"
                and parameters.get("g") == "apidiscovery.k8s.io"
                and version in ("v2", "v2beta1")
            ):
                return self._aggregated_response(request, root, version)
        document = self._api_versions(request) if root == "api" else self._group_list()
        return json_response(request, document, headers={"Vary": "Accept"})

    def _aggregated_response(self, request: web.Request, root: str, version: str) -> web.Response:
        body = dump(self._aggregated(root, version))
        etag = '"' + hashlib.sha256(body).hexdigest().upper() + '"'
        headers = {"ETag": etag, "Vary": "Accept"}
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = _AGGREGATED.format(version=version)
        return web.Response(body=body, headers=headers)

    def _aggregated(self, root: str, version: str) -> dict[str, Any]:
        items = []
        for group, versions in self.groups().items():
            if (group == "") is not (root == "api"):
                continue
            described = [
                {"version": v, "freshness": "Current", "resources": self._resources(group, v)} for v in versions
            ]
            metadata = {"name": group} if group else {}
            items.append({"metadata": metadata, "versions": described})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": items,
        }

    def _resources(self, group: str, version: str) -> list[dict[str, Any]]:
        described = [_aggregated_resource(kind) for kind in self._registry.of(group, version)]
        for g, v, plural, kind_name, namespaced in REVIEWS:
            if (g, v) == (group, version):
                described.append(
                    {
                        "resource": plural,
                        "responseKind": {"group": g, "version": v, "kind": kind_name},
                        "scope": "Namespaced" if namespaced else "Cluster",
                        "singularResource": kind_name.lower(),
                        "verbs": ["create"],
                    }
                )
        return described

    @staticmethod
    def _api_versions(request: web.Request) -> dict[str, Any]:
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}

    def _group_list(self) -> dict[str, Any]:
        groups = [_api_group(group, versions) for group, versions in self.groups().items() if group]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, request: web.Request, group: str) -> web.Response:
        versions = self.groups().get(group)
        if not group or versions is None:
            return text_not_found()
        document = {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group, versions)}
        return json_response(request, document)

    def _resource_list(self, request: web.Request, group: str, version: str) -> web.Response:
        if version not in self.groups().get(group, []):
            return text_not_found()
        resources: list[dict[str, Any]] = []
        for kind in self._registry.of(group, version):
            resources.extend(_plain_resources(kind))
        for g, v, plural, kind_name, namespaced in REVIEWS:
            if (g, v) == (group, version):
                resources.append(
                    {
                        "name": plural,
                        "singularName": kind_name.lower(),
                        "namespaced": namespaced,
                        "kind": kind_name,
                        "verbs": ["create"],
                    }
                )
        document = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }
        return json_response(request, document)


def _api_group(group: str, versions: list[str]) -> dict[str, Any]:
    described = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": described, "preferredVersion": described[0]}


def _optional_names(kind: Kind) -> dict[str, Any]:
    names: dict[str, Any] = {}
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    if kind.categories:
        names["categories"] = list(kind.categories)
    return names


def _sub_kind(kind: Kind, subresource: str) -> tuple[str, str, str]:
    found = _SUBRESOURCES[subresource][0]
    return found if found[2] else (kind.group, kind.version, kind.kind)


def _aggregated_resource(kind: Kind) -> dict[str, Any]:
    described: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.kind.lower(),
        "verbs": verbs_of(kind),
        **_optional_names(kind),
    }
    subresources = []
    for subresource in kind.subresources:
        group, version, name = _sub_kind(kind, subresource)
        subresources.append(
            {
                "subresource": subresource,
                "responseKind": {"group": group, "version": version, "kind": name},
                "verbs": list(_SUBRESOURCES[subresource][1]),
            }
        )
    if subresources:
        described["subresources"] = subresources
    return described


def _plain_resources(kind: Kind) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = [
        {
            "name": kind.plural,
            "singularName": kind.singular or kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs_of(kind),
            **_optional_names(kind),
        }
    ]
    for subresource in kind.subresources:
        group, version, name = _sub_kind(kind, subresource)
        entry: dict[str, Any] = {
            "name": f"{kind.plural}/{subresource}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": name,
            "verbs": list(_SUBRESOURCES[subresource][1]),
        }
        if (group, version) != (kind.group, kind.version):
            entry |= {"group": group, "version": version}
        described.append(entry)
    return described
