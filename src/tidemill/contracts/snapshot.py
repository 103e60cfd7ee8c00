"""What a source promises whose tables can be copied while they change: a reader of chunks, and where its stream stands.

The rule that makes a copy right (ADR 28). A chunk is one consistent read of a key range. It is adopted into the log
when the log has everything up to the chunk's `high`; of its rows those are left out whose keys have an event in the
chunk's *window*, which is newer or the same. The window begins where an *observation* was made:

    1. the driver notes where the log ends
    2. the reader observes the server (`observe`)
    3. later, a chunk's read proves that it sees every transaction that the stream had before 2 (`observation`)

So what the read does not see committed after 2, was logged after 1, and stands in the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from pydantic import Field

from tidemill.contracts.source import Schemas
from tidemill.model.block import Block
from tidemill.model.config import Config
from tidemill.model.position import Position
from tidemill.model.snapshot import Bound, Chunk, SnapshotMode, SnapshotTable
from tidemill.model.table import Table


class ChunkReading(Protocol):
    """One chunk's consistent read, open."""

    @property
    def high(self) -> Position:
        """Every transaction that the read sees stands at or before this position in the stream."""

    @property
    def observation(self) -> int | None:
        """The newest of the given observations before which the stream has nothing that the read does not see; None
        if that is not known of any (a transaction from before the first one is still open)."""

    @property
    def commit_time(self) -> int:
        """The server's clock at the read, in microseconds since 1970, UTC."""

    def blocks(self) -> Iterator[Block]:
        """All rows of the chunk, each block of bounded size. `op` is READ, `offset` and `ordinal` count from 0 over the
        chunk; `after` has the row, and `odd` what its types cannot hold. No position, tx_id and commit_time: the log
        adds them. Values equal those that the stream gives for the same row, for every type."""


class SnapshotReader(Protocol):
    """Reads tables of one source, in the driver or in a Spark worker, on ordinary connections of its own, made when
    first needed. For one thread. Can be pickled before it is used."""

    def tables(self, names: Sequence[str] = ()) -> list[SnapshotTable]:
        """The captured tables, or those of `names` (`schema.table`, patterns as in `tables` of the source), with their
        structure as it is now. An estimate comes from the catalog, not from a count."""

    def structures(self) -> list[Table]:
        """The captured tables as they are now, also before the first start: capture need not have made anything."""

    def names_with_rows(self) -> list[str]:
        """Full names of the captured tables that have rows, or may have; also before the first start."""

    def plan(self, table: SnapshotTable, part: str, after: Bound | None, rows: int) -> Bound | None:
        """Where the chunk ends that begins after `after` (None: at the first row): a key with about `rows` rows up to
        it. None: it is the last one of the part. Walks an index, and reads no row."""

    def observe(self, logged: Position) -> str:
        """An observation of the server, small text. Waits, on a standby, until that has everything up to `logged`."""

    def read(
        self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]
    ) -> AbstractContextManager[ChunkReading]:
        """Begins the chunk's read. `table` is as `tables` gave it, its structure numbered: blocks carry that structure.
        `StructureChanged` if the table does not have it any more. `observations`: oldest first. Who finds that the read
        proves none of them closes it, and reads later."""

    def close(self) -> None: ...


@runtime_checkable
class LoggingInReader(Protocol):
    """A `SnapshotReader` whose first read would wait for a login."""

    def get_ready(self) -> None:
        """Logs in: chunks are about to be read. What goes wrong the first read would meet, too."""


@runtime_checkable
class SnapshotSource(Protocol):
    """A source whose tables can be copied. One that is not of this kind has no snapshots."""

    def snapshot_reader(self) -> SnapshotReader:
        """Connects to nothing yet."""

    def reached(self, high: Position, logged: Position) -> bool:
        """Whether the log has everything up to `high`. `logged` is the log's end, and every change that `changes` gave
        is in it. Cheap: asked in every turn of the loop."""

    def hasten(self, high: Position) -> None:
        """`high` is waited for. A source of an idle server may write something there that makes its stream move on."""

    def register(self, tables: Sequence[Table], schemas: Schemas, position: Position) -> list[Table]:
        """The structures of tables that are copied, numbered; the stream has come to them (`SnapshotTable.high`). Many
        at once, so that neither the server nor the disk is asked for each of them."""


@runtime_checkable
class SilentSource(Protocol):
    """A source whose server goes on where nothing is captured: its stream comes further than the log's last event."""

    def reached_position(self, logged: Position) -> Position:
        """How far the log has everything, as `reached` counts, and asked when that may be."""


@runtime_checkable
class MarkingSource(Protocol):
    """A source that says of a table that rows from before are missing, until they have come."""

    def note_copied(self, tables: Mapping[str, Position]) -> None:
        """All rows of these tables are in the log, from a copy that met the table at the position or after it
        (`SnapshotTable.high`); an empty one where some were left out. Said again at every start."""


@runtime_checkable
class CopiedSourceConfig(Protocol):
    """The config of such a source: it has `snapshot:`."""

    snapshot: SnapshotConfig | None


class SnapshotConfig(Config):
    """`snapshot:` of a source. Left out: rows that were there before are not copied."""

    mode: SnapshotMode = Field(
        default=SnapshotMode.INITIAL,
        description="When tables are copied: never; initial, once, when the pipeline has never run; always, at every"
        " start; when_needed, as initial and again by itself when the position was lost.",
    )
    tables: tuple[str, ...] = Field(
        default=(), description="Tables to copy, as in `tables` of the source; none means all that are captured."
    )
    chunk_rows: int = Field(
        default=50_000, gt=0, description="About how many rows are read by one query; at most 8,192 while changes come."
    )
    max_connections: int = Field(default=4, gt=0, description="How many chunks are read at once.")
    max_rows_per_second: int | None = Field(
        default=None, gt=0, description="Over all connections, on the average. Not set: as fast as it goes."
    )
    filters: dict[str, str] = Field(
        default_factory=dict,
        description="SQL conditions by table (`schema.table`): only these rows are copied. Changes come all the same.",
    )
