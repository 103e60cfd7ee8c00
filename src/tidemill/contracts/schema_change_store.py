"""What a state store keeps of schema changes: each that came to the sinks, who decided on it, what became of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill.contracts.installation import AuditEntry
from tidemill.model.position import Offset, Position
from tidemill.model.quarantine import Quarantine


class Decision(enum.StrEnum):
    """Of a person, or of the pipeline's policies. Only `pending` can become another one, once."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    MADE = "made"  # an operator made the change at the destinations: no statement is run for it


class ChangeStatus(enum.StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    APPLIED = "applied"
    IGNORED = "ignored"
    FAILED = "failed"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class SinkOutcome:
    """What a sink would do (`statements`), and what came of it: `status` is empty before it was reached."""

    statements: tuple[str, ...] = ()
    status: str = ""
    error: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One change of one table. `number` counts a pipeline's changes from 1. `before` and `after` are tables as JSON,
    empty where there is none; `text` is the source's statement where it tells it. Times are ISO 8601. `quarantine`:
    the table's rows wait, or waited, for the decision."""

    number: int
    offset: Offset
    position: Position
    table: str
    kinds: tuple[str, ...]
    text: str
    before: str
    after: str
    seen_at: str
    decision: Decision = Decision.PENDING
    actor: str = ""
    reason: str = ""
    decided_at: str = ""
    outcomes: Mapping[str, SinkOutcome] = field(default_factory=dict)
    quarantine: Quarantine | None = None

    @property
    def status(self) -> ChangeStatus:
        """A failure counts before everything, then what sinks did, then the decision."""
        done = {outcome.status for outcome in self.outcomes.values() if outcome.status}
        if ChangeStatus.FAILED in done:
            return ChangeStatus.FAILED
        if done:
            return ChangeStatus.IGNORED if done == {ChangeStatus.IGNORED} else ChangeStatus.APPLIED
        if self.quarantine is not None and self.decision is Decision.PENDING:
            return ChangeStatus.QUARANTINED
        return ChangeStatus.APPLIED if self.decision is Decision.MADE else ChangeStatus(self.decision)


class SchemaChangeStore(Protocol):
    def record(self, pipeline: str, change: StoredChange) -> StoredChange:
        """The change as it is kept. One that came before, at the same offset of the same table, keeps its number and
        what was decided; a new one gets the next number."""

    def changes(self, pipeline: str, limit: int = 100, *, before: int | None = None) -> list[StoredChange]:
        """Newest first; only those whose number is below `before`."""

    def change(self, pipeline: str, number: int) -> StoredChange | None: ...

    def decide(
        self, pipeline: str, number: int, decision: Decision, actor: str, reason: str, at: str,
        entry: AuditEntry | None = None,
    ) -> StoredChange:  # fmt: skip
        """The change as it is then. One that is not pending keeps its decision. `KeyError` if there is none. The
        `entry` goes into the audit trail in the same transaction, if this decided it."""

    def note(self, pipeline: str, number: int, sink: str, outcome: SinkOutcome) -> None:
        """What a sink would do about it, or did."""

    def structures(self, pipeline: str, sinks: str) -> dict[str, dict[str, Any]]:
        """By table: what the sinks of a group have, as a document of `schema.view`."""

    def keep_structures(self, pipeline: str, sinks: str, documents: Mapping[str, Mapping[str, Any]]) -> None: ...

    def quarantine(self, pipeline: str, number: int, table: str, first: Offset, at: str) -> Quarantine:
        """The table's rows wait from `first` on. One that began before stays as it is."""

    def quarantines(self, pipeline: str) -> list[Quarantine]:
        """All that the log may have rows of, by number."""

    def note_requeued(
        self, pipeline: str, number: int, through: Offset, ended: Offset | None = None, lost_at: str = ""
    ) -> None:
        """What waited before `through` is in the log again, with `ended` all of it; see `Quarantine` for the rest."""

    def forget_quarantine(self, pipeline: str, number: int) -> None:
        """One that ended, and of whose rows the log has none where they came first."""
