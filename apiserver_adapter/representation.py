"""Tables and metadata-only objects made from full ones (contract §3.6)."""

from __future__ import annotations

import json
from typing import Any

from watchcache.codec import dump
from watchcache.options import ListResult

from .negotiation import Representation
from .resources import Kind
from .table import columns_of, row_cells

_META = "meta.k8s.io"


def list_metadata(result: ListResult) -> dict[str, Any]:
    """The metadata of a list."""
    metadata: dict[str, Any] = {"resourceVersion": str(result.resource_version)}
    if result.continue_token:
        metadata["continue"] = result.continue_token
    if result.remaining:
        metadata["remainingItemCount"] = result.remaining
    return metadata


class Representer:
    """Converts the objects of one request. A watch's first table carries the column definitions."""

    def __init__(self, kind: Kind, representation: Representation, include_object: str) -> None:
        self._kind = kind
        self._table = representation.transform == "Table"
        self._version = f"{_META}/{representation.version}"
        self._include = include_object or "Metadata"
        self._described = False

    def single(self, raw: bytes) -> bytes:
        obj = json.loads(raw)
        if not self._table:
            return dump(self._metadata_only(obj))
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return dump(self._table_of([obj], metadata))

    def many(self, result: ListResult) -> bytes:
        metadata = list_metadata(result)
        objects = [item.decode() for item in result.items]
        if self._table:
            return dump(self._table_of(objects, metadata))
        return dump(
            {
                "kind": "PartialObjectMetadataList",
                "apiVersion": self._version,
                "metadata": metadata,
                "items": [self._metadata_only(obj) for obj in objects],
            }
        )

    def event(self, raw: bytes) -> bytes:
        obj = json.loads(raw)
        if not self._table:
            return dump(self._metadata_only(obj))
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        table = self._table_of([obj], metadata, describe=not self._described)
        self._described = True
        return dump(table)

    def _metadata_only(self, obj: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "PartialObjectMetadata", "apiVersion": self._version, "metadata": obj["metadata"]}

    def _table_of(
        self, objects: list[dict[str, Any]], metadata: dict[str, Any], *, describe: bool = True
    ) -> dict[str, Any]:
        columns = columns_of(self._kind)
        return {
            "kind": "Table",
            "apiVersion": self._version,
            "metadata": metadata,
            "columnDefinitions": [column.definition() for column in columns] if describe else [],
            "rows": [self._row(obj) for obj in objects],
        }

    def _row(self, obj: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"cells": row_cells(self._kind, obj)}
        if self._include == "Metadata":
            row["object"] = self._metadata_only(obj)
        elif self._include == "Object":
            row["object"] = obj
        return row
