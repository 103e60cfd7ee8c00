"""What is looked at. It travels to workers as JSON, in the plan of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.position import Offset


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """What an operator says of a column's values; None says nothing. `type` is a JSON Schema type."""

    type: str | None = None
    nullable: bool | None = None
    format: str | None = None
    min: float | None = None
    max: float | None = None
    values: tuple[str, ...] | None = None

    @classmethod
    def of(cls, doc: Mapping[str, Any]) -> DeclaredColumn:
        values = doc.get("values")
        return cls(**{**doc, "values": None if values is None else tuple(values)})


@dataclass(frozen=True, slots=True)
class SensingOptions:
    """`since`: events before this offset have been counted. `declared` is by table and column."""

    max_depth: int = 3  # 0: JSON documents are not looked into
    max_keys: int = 100
    warmup_events: int = 50
    sample_rate: int = 5
    structures: int = 1000
    ranges: bool = False
    enumerations: bool = False
    formats: bool = False
    max_values: int = 20
    since: Offset = 0
    declared: Mapping[str, Mapping[str, DeclaredColumn]] = field(default_factory=dict)

    @classmethod
    def of(cls, doc: Mapping[str, Any]) -> SensingOptions:
        """From `dataclasses.asdict`, by way of JSON."""
        declared = {
            table: {name: DeclaredColumn.of(column) for name, column in columns.items()}
            for table, columns in doc["declared"].items()
        }
        return cls(**{**doc, "declared": declared})
