"""The table of served kinds: names, scope, verbs, subresources, storage keys (contract §3.2, §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from watchcache.codec import Object, Resource


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A table column that a custom resource definition asks for."""

    name: str
    json_path: str
    type: str = "string"
    format: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Kind:
    """One served resource.

    Args:
        storage: the directory under /registry where its objects live, "" for the plural.
        selectable: field selectors beyond metadata.*: label to path.
        graceful: deletion waits for a grace period (seconds by default 30).
        returns_deleted: an immediate delete answers with the object rather than a Status.
        custom: defined by a custom resource definition, with ``columns`` for its tables.
        cached: served by a watch cache; events are not.
        needs_version: a PUT must carry the resourceVersion.
        ttl_s: objects vanish after this many seconds, 0 for never.

    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    storage: str = ""
    selectable: Mapping[str, str] = field(default_factory=dict)
    trigger: str = ""
    graceful: bool = False
    returns_deleted: bool = False
    cached: bool = True
    ttl_s: int = 0
    generation: bool = False
    needs_version: bool = False
    custom: bool = False
    columns: tuple[PrinterColumn, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return self.kind + "List"

    @property
    def identity(self) -> str:
        """ "apps/v1/deployments": unlike the group resource, it tells versions apart."""
        return f"{self.api_version}/{self.plural}"

    @property
    def group_resource(self) -> str:
        """ "pods" or "deployments.apps", as error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def resource(self) -> Resource:
        """The same for storage and watch cache."""
        return Resource(
            api_version=self.api_version,
            kind=self.kind,
            prefix=f"/registry/{self.storage or self.plural}/",
            namespaced=self.namespaced,
            fields=field_extractor(self.selectable),
            trigger=self.trigger,
        )


def field_extractor(selectable: Mapping[str, str]) -> Callable[[Object], Mapping[str, str]]:
    """A function that reads the selectable fields of an object; absent ones are left out."""
    paths = {label: path.split(".") for label, path in selectable.items()}

    def extract(obj: Object) -> Mapping[str, str]:
        found = {}
        for label, path in paths.items():
            value: object = obj
            for step in path:
                value = value.get(step) if isinstance(value, dict) else None
            if value is not None:
                found[label] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    return extract


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_POD_FIELDS = _same(
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = _same(
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "type",
) | {"reportingComponent": "reportingComponent", "source": "source.component"}

EVENT_TTL_S = 3600

KINDS: tuple[Kind, ...] = (
    Kind(
        "", "v1", "namespaces", "Namespace", "namespace", namespaced=False, short_names=("ns",),
        subresources=("finalize", "status"), selectable=_same("status.phase"), returns_deleted=True,
    ),
    Kind("", "v1", "configmaps", "ConfigMap", "configmap", short_names=("cm",), trigger="metadata.name"),
    Kind("", "v1", "secrets", "Secret", "secret", selectable=_same("type"), trigger="metadata.name"),
    Kind(
        "", "v1", "pods", "Pod", "pod", short_names=("po",), categories=("all",),
        subresources=("binding", "eviction", "log", "status"), selectable=_POD_FIELDS,
        trigger="spec.nodeName", graceful=True, returns_deleted=True, generation=True,
    ),
    Kind(
        "", "v1", "services", "Service", "service", short_names=("svc",), categories=("all",),
        subresources=("status",), storage="services/specs", returns_deleted=True,
        selectable=_same("spec.clusterIP", "spec.type"),
    ),
    Kind(
        "", "v1", "nodes", "Node", "node", namespaced=False, short_names=("no",),
        subresources=("status",), storage="minions", selectable=_same("spec.unschedulable"),
        trigger="metadata.name",
    ),
    Kind("", "v1", "endpoints", "Endpoints", short_names=("ep",), storage="services/endpoints"),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", "serviceaccount", short_names=("sa",)),
    Kind(
        "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", "persistentvolumeclaim",
        short_names=("pvc",), subresources=("status",),
    ),
    Kind(
        "", "v1", "persistentvolumes", "PersistentVolume", "persistentvolume", namespaced=False,
        short_names=("pv",), subresources=("status",),
    ),
    Kind(
        "", "v1", "events", "Event", "event", short_names=("ev",), selectable=_EVENT_FIELDS,
        cached=False, ttl_s=EVENT_TTL_S,
    ),
    Kind(
        "apps", "v1", "deployments", "Deployment", "deployment", short_names=("deploy",),
        categories=("all",), subresources=("scale", "status"), generation=True,
    ),
    Kind(
        "apps", "v1", "replicasets", "ReplicaSet", "replicaset", short_names=("rs",), categories=("all",),
        subresources=("scale", "status"), selectable=_same("status.replicas"), generation=True,
    ),
    Kind(
        "apps", "v1", "statefulsets", "StatefulSet", "statefulset", short_names=("sts",),
        categories=("all",), subresources=("scale", "status"), generation=True,
    ),
    Kind(
        "apps", "v1", "daemonsets", "DaemonSet", "daemonset", short_names=("ds",), categories=("all",),
        subresources=("status",), generation=True,
    ),
    Kind(
        "batch", "v1", "jobs", "Job", "job", categories=("all",), subresources=("status",),
        generation=True, selectable=_same("status.successful"),
    ),
    Kind(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
        "customresourcedefinition", namespaced=False, short_names=("crd", "crds"),
        storage="apiextensions.k8s.io/customresourcedefinitions", subresources=("status",), generation=True,
        categories=("api-extensions",),
    ),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", "lease", needs_version=True),
)  # fmt: skip


class Registry:
    """Kinds by path, and in discovery order."""

    def __init__(self, kinds: Iterable[Kind] = KINDS) -> None:
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._by_path.values()))

    def add(self, kind: Kind) -> None:
        self._by_path[kind.group, kind.version, kind.plural] = kind

    def remove(self, kind: Kind) -> None:
        self._by_path.pop((kind.group, kind.version, kind.plural), None)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def group_versions(self) -> dict[str, list[str]]:
        """Versions per group, the core group ("") first."""
        groups: dict[str, list[str]] = {}
        for kind in sorted(self, key=lambda kind: kind.group):
            versions = groups.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return groups

    def of(self, group: str, version: str) -> list[Kind]:
        found = [kind for kind in self if (kind.group, kind.version) == (group, version)]
        return sorted(found, key=lambda kind: kind.plural)
