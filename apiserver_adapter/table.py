"""Table columns as kubectl shows them, for the common kinds; Name and Age for the rest."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchcache.codec import dump

from . import json_path
from .resources import Kind, PrinterColumn

Object = dict[str, Any]
Cell = str | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """``priority`` above 0 shows only in wide output."""

    name: str
    cell: Callable[[Object], Cell]
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": "",
            "priority": self.priority,
        }


def _at(obj: Object, *path: str) -> Any:
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _text(*path: str, absent: str = "") -> Callable[[Object], Cell]:
    def cell(obj: Object) -> Cell:
        value = _at(obj, *path)
        return absent if value in (None, "") else str(value)

    return cell


def _number(*path: str) -> Callable[[Object], Cell]:
    return lambda obj: int(_at(obj, *path) or 0)


def _size(*path: str) -> Callable[[Object], Cell]:
    return lambda obj: len(_at(obj, *path) or ())


def human_duration(seconds: float) -> str:
    """An age as kubectl prints it: 45s, 3m20s, 5h, 12d, 2y30d."""
    total = max(0, int(seconds))
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, hours = divmod(hours, 24)
    if days < 8:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, days = divmod(days, 365)
    return f"{years}y{days}d" if years < 8 and days else f"{years}y"


def _age(obj: Object) -> Cell:
    return _since(_at(obj, "metadata", "creationTimestamp"))


def _since(stamp: Any) -> str:
    if not stamp:
        return "<unknown>"
    try:
        moment = datetime.datetime.fromisoformat(str(stamp))
    except ValueError:
        return "<invalid>"
    return human_duration((datetime.datetime.now(datetime.UTC) - moment).total_seconds())


def _selector(*path: str) -> Callable[[Object], Cell]:
    def cell(obj: Object) -> Cell:
        labels = _at(obj, *path) or {}
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"

    return cell


def _containers(field: str, *path: str) -> Callable[[Object], Cell]:
    return lambda obj: ",".join(str(item.get(field, "")) for item in _at(obj, *path) or ())


def _pod_ready(obj: Object) -> Cell:
    statuses = _at(obj, "status", "containerStatuses") or ()
    ready = sum(1 for status in statuses if status.get("ready"))
    return f"{ready}/{len(_at(obj, 'spec', 'containers') or ())}"


def _pod_status(obj: Object) -> Cell:
    if _at(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    reason = _at(obj, "status", "reason") or _at(obj, "status", "phase") or "Unknown"
    for status in _at(obj, "status", "containerStatuses") or ():
        state = status.get("state") or {}
        detail = state.get("waiting") or state.get("terminated") or {}
        reason = detail.get("reason") or reason
    return str(reason)


def _pod_restarts(obj: Object) -> Cell:
    statuses = _at(obj, "status", "containerStatuses") or ()
    return sum(int(status.get("restartCount", 0)) for status in statuses)


def _deployment_ready(obj: Object) -> Cell:
    return f"{_at(obj, 'status', 'readyReplicas') or 0}/{_at(obj, 'spec', 'replicas') or 0}"


def _service_ports(obj: Object) -> Cell:
    ports = []
    for port in _at(obj, "spec", "ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(ports) or "<none>"


def _external_ip(obj: Object) -> Cell:
    ingress = _at(obj, "status", "loadBalancer", "ingress") or ()
    found = [str(item.get("ip") or item.get("hostname")) for item in ingress]
    found += _at(obj, "spec", "externalIPs") or []
    if found:
        return ",".join(found)
    return "<pending>" if _at(obj, "spec", "type") == "LoadBalancer" else "<none>"


def _node_status(obj: Object) -> Cell:
    conditions = {item.get("type"): item.get("status") for item in _at(obj, "status", "conditions") or ()}
    status = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{status},SchedulingDisabled" if _at(obj, "spec", "unschedulable") else status


def _node_roles(obj: Object) -> Cell:
    prefix = "node-role.kubernetes.io/"
    labels = _at(obj, "metadata", "labels") or {}
    roles = [label.removeprefix(prefix) for label in labels if label.startswith(prefix)]
    return ",".join(sorted(roles)) or "<none>"


def _event_object(obj: Object) -> Cell:
    kind = str(_at(obj, "involvedObject", "kind") or "").lower()
    return f"{kind}/{_at(obj, 'involvedObject', 'name') or ''}"


def _last_seen(obj: Object) -> Cell:
    stamps = ("lastTimestamp", "eventTime", "firstTimestamp")
    return _since(next((obj[stamp] for stamp in stamps if obj.get(stamp)), None))


_NAME = Column("Name", _text("metadata", "name"), format="name")
_AGE = Column("Age", _age)
_TEMPLATE = ("spec", "template", "spec", "containers")
_WORKLOAD_WIDE = (
    Column("Containers", _containers("name", *_TEMPLATE), priority=1),
    Column("Images", _containers("image", *_TEMPLATE), priority=1),
    Column("Selector", _selector("spec", "selector", "matchLabels"), priority=1),
)

_COLUMNS: Mapping[str, Sequence[Column]] = {
    "Namespace": (_NAME, Column("Status", _text("status", "phase")), _AGE),
    "ConfigMap": (_NAME, Column("Data", _size("data"), "integer"), _AGE),
    "Secret": (_NAME, Column("Type", _text("type")), Column("Data", _size("data"), "integer"), _AGE),
    "Pod": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts, "integer"),
        _AGE,
        Column("IP", _text("status", "podIP", absent="<none>"), priority=1),
        Column("Node", _text("spec", "nodeName", absent="<none>"), priority=1),
    ),
    "Deployment": (
        _NAME,
        Column("Ready", _deployment_ready),
        Column("Up-to-date", _number("status", "updatedReplicas"), "integer"),
        Column("Available", _number("status", "availableReplicas"), "integer"),
        _AGE,
        *_WORKLOAD_WIDE,
    ),
    "ReplicaSet": (
        _NAME,
        Column("Desired", _number("spec", "replicas"), "integer"),
        Column("Current", _number("status", "replicas"), "integer"),
        Column("Ready", _number("status", "readyReplicas"), "integer"),
        _AGE,
        *_WORKLOAD_WIDE,
    ),
    "StatefulSet": (_NAME, Column("Ready", _deployment_ready), _AGE, *_WORKLOAD_WIDE[:2]),
    "Service": (
        _NAME,
        Column("Type", _text("spec", "type")),
        Column("Cluster-IP", _text("spec", "clusterIP", absent="<none>")),
        Column("External-IP", _external_ip),
        Column("Port(s)", _service_ports),
        _AGE,
        Column("Selector", _selector("spec", "selector"), priority=1),
    ),
    "Node": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _text("status", "nodeInfo", "kubeletVersion")),
    ),
    "ServiceAccount": (_NAME, Column("Secrets", _size("secrets"), "integer"), _AGE),
    "Lease": (_NAME, Column("Holder", _text("spec", "holderIdentity")), _AGE),
    "Event": (
        Column("Last Seen", _last_seen),
        Column("Type", _text("type")),
        Column("Reason", _text("reason")),
        Column("Object", _event_object),
        Column("Message", _text("message")),
        Column("Name", _text("metadata", "name"), format="name", priority=1),
    ),
}


def _custom(column: PrinterColumn) -> Column:
    def cell(obj: Object) -> Cell:
        value = json_path.first(column.json_path, obj)
        if column.type == "date":
            return _since(value)
        return value if value is None or isinstance(value, int | str) else dump(value).decode()

    # Dates are shown as ages, so they are strings to the client.
    return Column(column.name, cell, column.type, column.format, column.priority)


def columns_of(kind: Kind) -> Sequence[Column]:
    if kind.columns:
        return (_NAME, *map(_custom, kind.columns))
    return _COLUMNS.get(kind.kind, (_NAME, _AGE))


def row_cells(kind: Kind, obj: Object) -> list[Cell]:
    return [column.cell(obj) for column in columns_of(kind)]
