"""The few defaults that clients rely on: no scheduler, no kubelet, no allocator stands behind them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from .resources import Kind

Object = dict[str, Any]

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def set_defaults(kind: Kind, obj: Object) -> None:
    """Fill in what is missing, in place."""
    default = _DEFAULTS.get(kind.kind)
    if default is not None:
        default(obj)


def _map(obj: Object, field: str) -> Object:
    value = obj.get(field)
    if not isinstance(value, dict):
        value = obj[field] = {}
    return value


def _namespace(obj: Object) -> None:
    metadata = obj["metadata"]
    _map(metadata, "labels")[NAMESPACE_LABEL] = metadata["name"]
    if "deletionTimestamp" not in metadata:
        _map(obj, "spec").setdefault("finalizers", ["kubernetes"])
        _map(obj, "status").setdefault("phase", "Active")


def _pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    for container in spec.get("containers") or ():
        if isinstance(container, dict):
            container.setdefault("resources", {})
            container.setdefault("imagePullPolicy", _pull_policy(container.get("image") or ""))
            for port in container.get("ports") or ():
                port.setdefault("protocol", "TCP")


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"


def _pod(obj: Object) -> None:
    _pod_spec(_map(obj, "spec"))
    _map(obj, "status").setdefault("phase", "Pending")


def _workload(obj: Object) -> None:
    spec = _map(obj, "spec")
    spec.setdefault("replicas", 1)
    _template(spec)
    _map(obj, "status")


def _template(spec: Object) -> None:
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        _pod_spec(template["spec"])


def _deployment(obj: Object) -> None:
    _workload(obj)
    spec = obj["spec"]
    strategy = _map(spec, "strategy")
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = _map(strategy, "rollingUpdate")
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _daemon_set(obj: Object) -> None:
    _template(_map(obj, "spec"))
    _map(obj, "status")


def _service(obj: Object) -> None:
    spec = _map(obj, "spec")
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        if isinstance(port, dict):
            port.setdefault("protocol", "TCP")
            if "port" in port:
                port.setdefault("targetPort", port["port"])
    _map(obj, "status").setdefault("loadBalancer", {})


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    clear = obj.pop("stringData", None)
    if clear:
        data = _map(obj, "data")
        for name, text in clear.items():
            data[name] = base64.b64encode(str(text).encode("utf-8", "replace")).decode()


def _claim(obj: Object) -> None:
    _map(obj, "status").setdefault("phase", "Pending")


_DEFAULTS: dict[str, Callable[[Object], None]] = {
    "Namespace": _namespace,
    "Pod": _pod,
    "Deployment": _deployment,
    "ReplicaSet": _workload,
    "StatefulSet": _workload,
    "DaemonSet": _daemon_set,
    "Service": _service,
    "Secret": _secret,
    "PersistentVolumeClaim": _claim,
}
