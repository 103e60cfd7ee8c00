"""What a state store promises, and the values it keeps: what must be remembered besides logs and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.contracts.schema_change_store import SchemaChangeStore
from tidemill.contracts.sensing_store import SensingStore
from tidemill.contracts.snapshot_store import SnapshotStore
from tidemill.model.position import Offset, Position


@dataclass(frozen=True, slots=True)
class ConfirmedPosition:
    """The last position confirmed to the source, with everything before `offset` delivered, or durably logged."""

    position: Position
    offset: Offset


@dataclass(frozen=True, slots=True)
class Transition:
    """A pipeline's change of state: who made it, when (ISO 8601) and why."""

    state: str
    actor: str
    reason: str
    at: str


@dataclass(frozen=True, slots=True)
class LostRange:
    """Events that a sink never gets, from `first` up to and without `end`: the log no longer held them. `events` is
    less than the distance only where an older version added several losses up."""

    first: Offset
    end: Offset
    events: int


class StateStore(Protocol):
    """Keeps state per pipeline, for every process of an installation. Safe between threads, processes and, on a server,
    machines.

    A write is durable when its call returns, and wholly there or not at all if the writer is killed. A write that
    failed may have taken place; each may be repeated. `StateError` is worth a retry, unless the store is too new.
    """

    @property
    def snapshots(self) -> SnapshotStore:
        """Tables that are copied, and how far that came."""

    @property
    def sensing(self) -> SensingStore:
        """Schemas inferred from events, and drift."""

    @property
    def schema_changes(self) -> SchemaChangeStore:
        """Changes of tables that came to the sinks, and decisions on them."""

    def claim(self, pipeline: str, directory: str, *, keep: bool = False) -> None:
        """Ties the pipeline's state to its state directory, by that directory's identity. What was kept for another
        directory belongs to another life of the pipeline: it is forgotten, except the transitions. With `keep` an
        operator says that the directory goes on where the other one ended."""

    def confirmed(self, pipeline: str) -> ConfirmedPosition | None: ...

    def confirm(self, pipeline: str, position: Position, offset: Offset) -> None:
        """Call before the position is confirmed to the source (invariant 2)."""

    def forget_confirmed(self, pipeline: str) -> None: ...

    def record(self, pipeline: str, transition: Transition) -> None:
        """The transition becomes the newest. Recording the newest once more changes nothing."""

    def transitions(self, pipeline: str, limit: int = 20) -> list[Transition]:
        """Newest first; the first one is the current state."""

    def spark_start(self, pipeline: str, sink: str = "") -> Offset | None:
        """Where the first batch of Spark's checkpoint directory began; `sink` names one with a stream of its own."""

    def save_spark_start(self, pipeline: str, offset: Offset, sink: str = "") -> None: ...

    def forget_spark_start(self, pipeline: str, sink: str = "") -> None: ...

    def lost_ranges(self, pipeline: str, sink: str) -> list[LostRange]:
        """In order of their offsets."""

    def add_lost_range(self, pipeline: str, sink: str, lost: LostRange) -> None:
        """A range that begins where a kept one does replaces it: that loss was noted, and grew before it was final."""

    def forget_lost_ranges(self, pipeline: str, sink: str) -> None: ...

    def forget(self, pipeline: str) -> None:
        """Everything about the pipeline."""

    def close(self) -> None: ...
