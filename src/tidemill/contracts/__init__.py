"""What every pluggable part has in common: a config model beside its class, and checks for `tidemill doctor`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from tidemill.model.block import Block
from tidemill.model.change import Change
from tidemill.model.delivery import Checkpoint, Delivery, Receipt, Tier
from tidemill.model.position import Position
from tidemill.model.table import Table


class Config(BaseModel):
    """Base of every configuration model: unknown keys are refused, values are not coerced across kinds.

    Every field carries a `description`; the reference pages and the JSON Schema are made of them. Secrets are
    `pydantic.SecretStr`, or strings marked `json_schema_extra={"secret": True}` where only a part is secret (a DSN).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


ConfigT = TypeVar("ConfigT", bound=Config)


class Outcome(enum.StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `tidemill doctor`. `fix` says what to do, and is empty only when the check passed."""

    name: str
    outcome: Outcome
    detail: str = ""
    fix: str = ""


class Component(Generic[ConfigT]):
    """A class in a family's folder. Its module's name is its `type:` in YAML; `Config` is its `config:`."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def doctor(self) -> Iterable[Check]:
        """Looks, touches nothing. Raises nothing: what it meets is a failed check."""
        return ()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator must know although the stream goes on: rows of a table may be missing, a pattern matches
    nothing yet. `code` is stable (`table-incomplete`), `subject` is what it is about (a table). It stands in every
    status until it is no longer true or an operator has accepted it."""

    code: str
    subject: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Structure:
    """What a source noted about a name at a position, in words of its own; None when the name went away. `sequence`
    rises with every note."""

    sequence: int
    position: Position
    name: str
    document: bytes | None


class Schemas(Protocol):
    """Numbers table versions, and keeps what a source must remember to know the structure at an old position
    (invariant 6). Kept across restarts."""

    def register(self, table: Table, position: Position) -> Table: ...

    def newest(self, name: str) -> Table | None:
        """The last registered version of a table."""

    def versions(self, name: str) -> list[Table]:
        """Every registered version of a table, oldest first."""

    def structures(self) -> list[Structure]:
        """Every note that was kept, oldest first."""

    def keep_structures(self, position: Position, documents: Mapping[str, bytes | None]) -> None:
        """Durable when it returns, all of them or none."""

    def forget_structures(self, after: int) -> None:
        """Notes with a higher sequence: what lies behind the position at which a source resumes comes again."""

    def recall(self, name: str) -> bytes | None:
        """The document that was last remembered under `name`."""

    def remember(self, name: str, document: bytes | None) -> None:
        """What a source must know of its server across restarts, in words of its own (identity, members of a
        publication, tables with gaps). Durable when it returns; None forgets it."""


class Decoder(Protocol):
    """Turns one connection's bytes into changes. `consumed` is valid once `feed` is exhausted. No change has a position
    before the one that the connection was opened after: positions are opaque, so nobody else can see to it."""

    @property
    def consumed(self) -> int: ...

    def feed(self, data: memoryview) -> Iterator[Change]: ...


@dataclass(frozen=True, slots=True)
class Resting:
    """Where a pipeline that has run before will go on: after `after`, or after `told` where the source says that this
    is further. `since`: when its capture last gave a sign of life, seconds since 1970. `recall`: as in `Schemas`."""

    after: Position
    told: Position | None
    since: float
    recall: Callable[[str], bytes | None] = lambda name: None


@dataclass(frozen=True, slots=True)
class Passage:
    """What an operator gives up: the changes of `what`, in words. The stream goes on after `to`."""

    to: Position
    what: str


class Source(Protocol):
    """A database's change stream. Lives in the capture process, used by one thread.

    `open` may be called again after a `ConnectionLost`; each call gives the decoder of the new connection.
    """

    @property
    def began(self) -> Position:
        """Where the stream that `open` made begins."""

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> object:
        """Prepares the database; idempotent. `SetupError` says what is missing and who can grant it. With `after`, what
        an earlier run prepared must still be there: made anew, it would skip changes (invariant 7). What `schemas`
        remember of the server is compared before anything else is said of it. A source that must tell later what has
        changed since then notes in `schemas` how it is now."""

    def other_server(self, after: Position, schemas: Schemas) -> str:
        """For a person who is about to give up what follows `after`: says so if this is not the server that was
        captured (the dsn may be wrong), else empty."""

    def open(self, after: Position | None, schemas: Schemas, *, told: Position | None, mark_events: int) -> Decoder:
        """Streams what committed after `after`. `told` is the last position this pipeline acknowledged: a source that
        was moved beyond both has lost changes, which is a `PositionLost` (invariant 7)."""

    def read(self) -> memoryview:
        """All unconsumed bytes. Waits a moment for more; may return what was there before."""

    def consumed(self, count: int) -> None:
        """The first `count` bytes of the last `read` are done with."""

    def renew(self, schemas: Schemas | None = None) -> Position:
        """Forgets the position at the database and begins a new one, now; answers it. Only an operator asks for this:
        what happened in between is not captured (invariant 7). What it remembers of its server in `schemas` begins
        anew too: the gap covers whatever it said about tables."""

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, told: Position | None
    ) -> Passage:
        """What is lost, and where the stream goes on, when an operator gives up everything after `after` and up to
        `through`; without that, the one transaction that comes next. The database stays as it is: the log is told to
        go on there, and `schemas` may keep that it was an operator who said so, which holds only if the log does.
        `ConfigError` if the database does not have that position, `PositionLost` if it cannot go on after `after`."""

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        """An operator has dealt with what notices of `subject` say happened: they are forgotten, durably. Answers them.
        A notice of something that is still so is not of that kind: it goes when it is no longer true."""

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        """What the database should be told now, None while there is nothing to say or it was told a moment ago.

        Never beyond `delivered` (invariant 2), except that a source which is `caught_up` (everything decoded so far is
        delivered) and idle may move on, so that the database need not keep its log for nothing."""

    def acknowledge(self, position: Position) -> None:
        """Tells the database that it may forget what is before `position`, as returned by `due`."""

    def notices(self) -> tuple[Notice, ...]:
        """What an operator must know now although the stream goes on. Cheap: asked with every progress report."""

    def lag_bytes(self) -> int | None:
        """How much of its log the database still keeps for us, if it says."""

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        """With `resting`, also whether the database still has all that follows it, and for how long."""

    def close(self) -> None: ...


class BatchWriter(Protocol):
    """One file of many events, written a block at a time. `close` ends the file; the stream stays open."""

    def write(self, block: Block) -> None: ...

    def close(self) -> None: ...


class Format(Protocol):
    """A wire format: blocks in, bytes out, the same bytes for the same block (invariant 5). No I/O except that a schema
    registry may be asked for the number of a schema that was not met before."""

    content_type: str  # of one event, as HTTP and CloudEvents name it
    batch_content_type: str  # of many in one body or file
    suffix: str  # of a file of many
    schema_in_file: bool  # a file of many holds rows of one version of one table

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        """One document per row."""

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        """The key columns as a document; null where the table or the event has no key. `source` is in the name of its
        schema, in formats and envelopes that have one."""

    def batch(self, block: Block, source: str) -> pa.Buffer:
        """All rows in one piece that a reader of the format takes as it is: JSON lines, an Avro container file,
        length-delimited Protobuf, an Arrow stream, a Parquet file."""

    def stacked(self, block: Block, source: str) -> pa.LargeBinaryArray | None:
        """The rows of `batch` one by one, if it is nothing but its rows one behind another, so that any run of them is
        a batch too: JSON lines, length-delimited Protobuf. None for files with a head."""

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> BatchWriter:
        """The same as `batch`, written to a binary stream bit by bit. `compression` is the format's own: none, gzip or
        zstd. Formats without any (JSON, Protobuf) ignore it; their whole stream may be compressed instead."""

    def attributes(self, block: Block, source: str) -> Mapping[str, pa.Array | str]:
        """What travels beside an event instead of in it: the attributes of CloudEvents in binary mode (`id`, `type`,
        ...), by row or the same for all rows. Empty for every other envelope."""

    def to(self, topic: str) -> Format:
        """The same format for what goes to one topic: a schema registry may file schemas by it."""


class Sink(Protocol):
    """Writes deliveries. Lives in a Spark worker and is kept between batches.

    `write` returns only when the events are durable at the destination, or raises: `Poisoned` when some events
    can never be taken, `Refused` for what else no retry can mend, `DeliveryError` otherwise. Writing the same delivery
    again is always safe; for the effectively-once tier it changes nothing.

    `mechanism` says in a sentence how the tier is kept (docs/delivery.md is made of it). With `single_lane` all of a
    batch comes in one lane, for destinations that want rising ids. `formats` are the wire formats it can send; empty
    for a destination with columns of its own.
    """

    mechanism: ClassVar[str]
    single_lane: ClassVar[bool]
    formats: ClassVar[frozenset[str]]
    config: SinkConfig

    @property
    def tier(self) -> Tier: ...

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

    def holds_rows(self) -> bool:
        """Whether the sink keeps the current row of a key, so that an older event would put it back: dead letters that
        newer events superseded are not replayed to it."""
        return False


class CheckpointStore(Protocol):
    """Keeps checkpoints per pipeline. `save` is compare-and-set on `expect` (the version that was read, 0 for none)
    and never moves backwards unless `force` says that an operator asked for it. A save may be repeated with the same
    `expect` after an error, by the same `writer`: what it stored the first time is no conflict."""

    def load(self, pipeline: str) -> Checkpoint | None: ...

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint: ...

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]: ...

    def close(self) -> None: ...
