"""One request to one resource, as the handlers see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from .objects import relative_key
from .paths import ResourcePath
from .resources import Kind, Registry
from .store import ObjectStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The object stores by kind.

    ``deleted_namespaces`` are names whose deletion went through here: the cache may not show it yet.
    """

    registry: Registry
    by_kind: dict[str, ObjectStore]
    deleted_namespaces: set[str] = field(default_factory=set)

    def of(self, kind: Kind) -> ObjectStore:
        return self.by_kind[kind.identity]


@dataclass(frozen=True, slots=True)
class Context:
    """A request with its path resolved."""

    request: web.Request
    path: ResourcePath
    kind: Kind
    stores: Stores

    @property
    def store(self) -> ObjectStore:
        return self.stores.of(self.kind)

    @property
    def namespace(self) -> str:
        return self.path.namespace

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def key(self) -> str:
        return relative_key(self.kind, self.namespace, self.name)
