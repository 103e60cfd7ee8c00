"""What a sink promises to the stream, and the settings every sink has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from pydantic import Field

from tidemill.contracts.check import Check
from tidemill.contracts.component import Component
from tidemill.errors import Refused
from tidemill.model.config import Config
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind, SchemaPlan


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sink can do. A class says it of its type; an object may say less, as it is configured, except that
    `single_lane` and `formats` are the same for all of a type: documents are checked by them before there is an object.

    With `single_lane` all of a batch comes in one lane, in order of its offsets, for destinations that want rising ids.
    `formats` are the wire formats it can send; empty for a destination with columns of its own. `schema_changes` are
    the kinds of change of a source's table that it makes at the destination too; empty for a sink that keeps no tables.
    `upsert`: it keeps the current row of a key, so that an older event would put it back; dead letters that newer
    events superseded are not replayed to it.
    """

    single_lane: bool = False
    formats: frozenset[str] = frozenset()
    schema_changes: frozenset[SchemaChangeKind] = frozenset()
    upsert: bool = False

    def without(self, *kinds: SchemaChangeKind) -> Capabilities:
        """The same, less some kinds of schema change."""
        return replace(self, schema_changes=self.schema_changes.difference(kinds))


class Sink(Protocol):
    """Writes deliveries. Lives in a Spark worker and is kept between batches. Members of the family extend `BaseSink`.

    `write` returns only when the events are durable at the destination, or raises: `Poisoned` when some events
    can never be taken, `Refused` for what else no retry can mend, `DeliveryError` otherwise. Writing the same delivery
    again is always safe; for the effectively-once tier it changes nothing. A sink with tables says in
    `Poisoned.lacking` which events it refuses only because they leave columns out of a row that it does not have.
    """

    capabilities: Capabilities

    @property
    def config(self) -> SinkConfig: ...

    @property
    def tier(self) -> Tier: ...

    def plan(self, change: SchemaChange) -> SchemaPlan:
        """What `apply` would do about the change, as the destination is now. Reads at most. `Refused` where it would
        refuse."""

    def apply(self, change: SchemaChange) -> None:
        """Makes the destination ready for rows of the new structure; nothing is left to do if it is already. Only
        between two deliveries."""

    def adopt(self, change: SchemaChange) -> None:
        """An operator made the change at the destination. Runs none of its statements; a sink that keeps what it made
        of a table notes that this was made too, where it sees nothing to the contrary."""

    def write(self, delivery: Delivery) -> Receipt: ...

    def doctor(self) -> Iterable[Check]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A destination as an address that is the same however it is written: no credentials, hosts in order, absolute
    paths. One that ends with a slash holds everything below it. Templates stand as they are: the same template is the
    same place only in one pipeline. With `per_pipeline` other pipelines may write there."""

    address: str
    per_pipeline: bool = False

    def overlaps(self, other: Place) -> bool:
        a, b = self.address, other.address
        return a == b or (a.endswith("/") and b.startswith(a)) or (b.endswith("/") and a.startswith(b))


class SinkConfig(Config):
    """Fields every sink has; each sink's model extends it."""

    id: str = Field(min_length=1, description="The sink's name in receipts, metrics and errors; unique in a pipeline.")
    required: bool = Field(
        default=True, description="Whether the checkpoint waits for this sink (commit policy `required`)."
    )

    def occupies(self) -> tuple[Place, ...]:
        """What no second sink may write to; two sinks that occupy one place are refused before anything starts. Nothing
        where several writers do no harm. Connects to nothing."""
        return ()


SinkConfigT = TypeVar("SinkConfigT", bound=SinkConfig)


class BaseSink(Component[SinkConfigT]):
    """What every sink begins with: no capability, until it says one. `mechanism` says in a sentence how the tier is
    kept; docs/delivery.md is made of it."""

    mechanism: ClassVar[str]
    capabilities: Capabilities = Capabilities()

    def __init__(self, config: SinkConfigT) -> None:
        super().__init__(config)
        self.capabilities = self.capabilities_of(config)

    @classmethod
    def capabilities_of(cls, config: SinkConfigT) -> Capabilities:
        """What a sink of this config does; asked where none is to be made. Those of the type, unless it says less."""
        return cls.capabilities

    def plan(self, change: SchemaChange) -> SchemaPlan:
        """A sink that keeps no tables has nothing to do: events bring their structure along. One that keeps tables and
        has no plan of its own says so, because an empty plan would be a promise."""
        self._keeps_no_tables()
        return SchemaPlan()

    def apply(self, change: SchemaChange) -> None:
        self._keeps_no_tables()

    def adopt(self, change: SchemaChange) -> None:
        """Nothing for a sink that sees at the destination what is there."""

    def _keeps_no_tables(self) -> None:
        if self.capabilities.schema_changes:
            raise Refused(
                "this sink cannot say beforehand what it would do to its tables",
                where=f'sink "{self.config.id}"',
                fix="It changes them when the first event of the new structure arrives.",
            )
