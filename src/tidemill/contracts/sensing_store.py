"""What a state store keeps of schemas inferred from events, and of drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidemill.model.position import Offset


@dataclass(frozen=True, slots=True)
class SensedTable:
    """The inferred schema of a table, as a document of `schema.sensing`. `version` counts its structures from 1."""

    name: str
    version: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SensedVersion:
    """A structure that was inferred first from the events before `offset`, at that time (ISO 8601)."""

    version: int
    offset: Offset
    at: str
    structure: list[Any]


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """Drift of one kind at one place of a table, as a document of `schema.drift`."""

    table: str
    kind: str
    subject: str
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SensedBatch:
    """What one batch changed. `offset`: every event before it has been counted. `revision` is that of the baselines
    which `findings` and `baselines` come from."""

    offset: Offset
    at: str
    tables: Sequence[SensedTable] = ()
    structures: Mapping[str, SensedVersion] | None = None  # new ones, by table
    baselines: Mapping[str, dict[str, Any]] | None = None  # learned now, by table
    findings: Sequence[StoredFinding] = ()
    drifted: Sequence[dict[str, Any]] = ()  # reported with this batch, for the sink of drift
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class DriftEvent:
    """A drift that its sink has not taken yet. `number` counts them from 1 and is never given twice."""

    number: int
    document: dict[str, Any]


class SensingStore(Protocol):
    def offset(self, pipeline: str) -> Offset:
        """Every event before it has been counted; 0 at first."""

    def tables(self, pipeline: str) -> list[SensedTable]:
        """By name."""

    def versions(self, pipeline: str, table: str) -> list[SensedVersion]:
        """Newest first. Only the newest hundred are kept."""

    def baselines(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """What events are compared with, by table."""

    def revision(self, pipeline: str) -> int:
        """Another number after each `accept`."""

    def findings(self, pipeline: str) -> list[StoredFinding]:
        """By table, kind and subject."""

    def save(self, pipeline: str, batch: SensedBatch) -> None:
        """All of it or nothing. A batch whose offset is not above the one that is kept changes nothing. Baselines and
        findings are left out after an `accept` that the batch's revision does not know."""

    def accept(self, pipeline: str, table: str, baseline: Mapping[str, Any]) -> None:
        """The new baseline of a table; its findings are forgotten."""

    def drift_events(self, pipeline: str) -> list[DriftEvent]:
        """Those that wait for the sink, in order."""

    def forget_drift_event(self, pipeline: str, number: int) -> None:
        """The sink has it, and all before it."""
