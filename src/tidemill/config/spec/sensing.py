"""What stands under `schema_sensing:`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import Config
from tidemill.model.drift import DriftKind


class DeepInspect(Config):
    """JSON columns."""

    enabled: bool = Field(default=True, description="Look inside JSON columns.")
    max_depth: int = Field(default=3, ge=1, le=32, description="How many objects and arrays deep.")
    max_keys: int = Field(
        default=100, ge=1, le=10_000, description="An object with more distinct keys than this is a map: keys are data."
    )


class Sampling(Config):
    """After the warm-up an event's offset decides, so that a replay looks at the same events."""

    warmup_events: int = Field(default=50, ge=0, description="Events of a table that each worker looks at first.")
    sample_rate: int = Field(default=5, ge=1, description="After that, one in so many; 1 looks at all.")
    structure_cache: int = Field(
        default=1000, ge=1, description="JSON structures that a worker remembers and does not parse again."
    )


class ValueStatistics(Config):
    """What is kept of the values themselves. It is kept in the state store, and `tidemill sensing show` prints it."""

    ranges: bool = Field(default=False, description="Least and greatest of numbers, dates and times.")
    enumerations: bool = Field(default=False, description="The values of columns that have few.")
    max_values: int = Field(default=20, ge=1, le=1000, description="How many values are few.")
    formats: bool = Field(
        default=False, description="Which of date, date-time, uuid, email, uri, integer and number every text is."
    )


class ColumnDeclaration(Config):
    """What you say of a column; what is left out is not compared."""

    type: Literal["string", "integer", "number", "boolean", "object", "array"] | None = Field(
        default=None, description="Its JSON type. Of a text, `integer` and `number` are asked of each value."
    )
    nullable: bool | None = Field(default=None, description="Whether it may be null, whatever the database says.")
    format: Literal["date", "date-time", "uuid", "email", "uri"] | None = Field(
        default=None, description="What every text must be."
    )
    min: float | None = Field(default=None, description="The least number; of texts, the least length.")
    max: float | None = Field(default=None, description="The greatest number; of texts, the greatest length.")
    values: tuple[str, ...] | None = Field(default=None, description="All values that it may have, as text.")


class DriftReport(Config):
    """When a drift is reported."""

    min_events: int = Field(default=1, ge=1, description="From so many events on.")
    min_rate: float = Field(default=0.0, ge=0, le=1, description="From this share of the events looked at.")


class DriftDetection(Config):
    """Events that are not what was declared of their table."""

    enabled: bool = Field(default=True, description="Compare events with the baseline of their table.")
    baseline_documents: int = Field(
        default=200, ge=1, description="Documents of a JSON column that its structure is learned from."
    )
    declared: dict[str, dict[str, ColumnDeclaration]] = Field(
        default={}, description="By table (`public.orders`) and column: what you say of the values."
    )
    thresholds: dict[DriftKind, DriftReport] = Field(
        default={}, description="By kind of drift; by default the first event is reported."
    )
    sink: SinkSpec | None = Field(
        default=None,
        description="A sink of its own to which each drift is sent once it is reported, as an event of table "
        "tidemill.drift; left out, drift is sent nowhere.",
    )


class SchemaSensing(Config):
    """Schemas inferred from the events themselves: docs/sensing.md."""

    enabled: bool = Field(default=False, description="Infer schemas from the events themselves.")
    deep_inspect: DeepInspect = Field(default=DeepInspect(), description="Nested JSON.")
    sampling: Sampling = Field(default=Sampling(), description="How much is looked at.")
    values: ValueStatistics = Field(
        default=ValueStatistics(), description="What is kept of values; by default nothing."
    )
    drift: DriftDetection = Field(default=DriftDetection(), description="Declared against observed: docs/drift.md.")
