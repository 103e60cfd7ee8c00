"""What is remembered of snapshots: their tables, and their chunks from planned to adopted. Part of the state store.

The driver plans and stages, capture adopts, an operator starts, pauses and cancels: each from its own process. So every
write changes only the fields it names, and a chunk only goes on from the state that the writer saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import Bound, Chunk, ChunkState, SnapshotState, SnapshotTable, TableState

NOWHERE = Position("")


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """`tables` are names or patterns, none for all that are captured; `where` is a condition for all of them. `since`
    and `observation` are the last observation that a read has proven (contracts/snapshot.py), and where the log ended
    before it; `observation` is empty while there is none. `cursor`: the log was looked through for rows that moved
    with holes up to here. -1: not yet. `mark` is random. `recovers_from`: the log has a gap before this offset, which
    the snapshot makes good: what a state sink was not told of since is not in the source. -1: an ordinary copy."""

    id: int
    why: str
    state: SnapshotState
    began: str
    ended: str = ""
    tables: tuple[str, ...] = ()
    where: str = ""
    since: Offset = -1
    observation: str = ""
    cursor: Offset = -1
    mark: str = ""
    recovers_from: Offset = -1

    @property
    def identity(self) -> str:
        """The number alone begins anew with a state store that was lost; the log and the sinks still know the old
        one."""
        return f"{self.id}_{self.mark}" if self.mark else str(self.id)

    def owns(self, staging_id: str) -> bool:
        """Whether a chunk of this snapshot was staged under it (`ChunkCopy.staging_id`)."""
        return staging_id.startswith(f"snapshot{self.identity}.")


@dataclass(frozen=True, slots=True)
class TableCopy:
    """`structure` is numbered when capture has `registered` it. Chunks of `part` (a number of the structure's) are
    planned up to `lower`; `planned`: all are. `next` is the number of the next chunk. `points` are keys to read once
    more at the end. `chunks`, `adopted` and `rows` (of adopted chunks) are counted."""

    name: str
    number: int
    state: TableState
    structure: SnapshotTable
    registered: bool = False
    planned: bool = False
    part: int = 0
    lower: Bound | None = None
    next: int = 0
    points: tuple[Bound, ...] = ()
    error: str = ""
    fix: str = ""
    chunks: int = 0
    adopted: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ChunkCopy:
    """`since`: its window in the log begins here. `tries` counts reads that were thrown away."""

    table: int
    chunk: Chunk
    state: ChunkState = ChunkState.PLANNED
    since: Offset = -1
    high: Position = NOWHERE
    commit_time: int = 0
    fingerprint: str = ""
    rows: int = 0
    tries: int = 0

    def staging_id(self, snapshot: str) -> str:
        """Of the segments beside the log (log/staging.py); another one for each try. `snapshot`: its identity."""
        return f"snapshot{snapshot}.{self.table}.{self.chunk.number}.{self.tries}"


class SnapshotStore(Protocol):
    """Promises what `StateStore` does."""

    def begin(
        self,
        pipeline: str,
        why: str,
        tables: Sequence[str],
        where: str,
        at: str,
        *,
        state: SnapshotState = SnapshotState.RUNNING,
        recovers_from: Offset = -1,
    ) -> SnapshotRecord: ...

    def records(self, pipeline: str, limit: int = 1000) -> list[SnapshotRecord]:
        """Newest first."""

    def active(self, pipeline: str) -> SnapshotRecord | None:
        """The oldest that is neither done nor cancelled nor failed."""

    def set_state(self, pipeline: str, snapshot: int, state: SnapshotState, at: str = "") -> bool:
        """`at`: when it ended. False, and nothing changes, if it is over already: who asked saw it as it was before."""

    def save_observation(self, pipeline: str, snapshot: int, since: Offset, observation: str) -> None: ...

    def save_points(self, pipeline: str, snapshot: int, cursor: Offset, points: dict[str, Sequence[Bound]]) -> None:
        """Adds points to tables, by name, and moves the cursor, in one."""

    def add_tables(self, pipeline: str, snapshot: int, tables: Sequence[SnapshotTable]) -> None:
        """Pending. Those that are there already stay as they are."""

    def tables(self, pipeline: str, snapshot: int) -> list[TableCopy]:
        """In the order in which they were added."""

    def save_numbered(self, pipeline: str, snapshot: int, tables: Mapping[str, SnapshotTable]) -> None:
        """Capture has registered these structures, by name."""

    def forget_structure(self, pipeline: str, snapshot: int, name: str, structure: SnapshotTable) -> None:
        """The table has another structure now, to be registered: chunks that are not adopted are forgotten, and planned
        anew when it is."""

    def set_table_states(self, pipeline: str, snapshot: int, states: Mapping[str, TableState]) -> None:
        """By name, in one. What was wrong with them is forgotten."""

    def set_table_state(
        self, pipeline: str, snapshot: int, name: str, state: TableState, *, error: str = "", fix: str = ""
    ) -> None:
        """Chunks of one that failed are not read any more: those that are planned are forgotten. There may be a
        thousand such tables, and `chunks` names so many at a time."""

    def plan(self, pipeline: str, snapshot: int, plans: Sequence[tuple[TableCopy, Sequence[Chunk]]]) -> None:
        """Adds chunks, and saves `planned`, `part`, `lower`, `next` and `points` of their tables, in one."""

    def chunks(self, pipeline: str, snapshot: int, state: ChunkState, limit: int = 1000) -> list[ChunkCopy]:
        """In the order of tables and numbers."""

    def stage(self, pipeline: str, snapshot: int, chunks: Sequence[ChunkCopy]) -> None:
        """They were planned with the same number of tries."""

    def adopt(self, pipeline: str, snapshot: int, chunks: Sequence[tuple[ChunkCopy, int]]) -> None:
        """Each with the rows of it that are in the log, in one. They are counted from then on, and not kept: looks at
        the tables of a large snapshot cost no more at its end than at its beginning."""

    def read_again(self, pipeline: str, snapshot: int, chunk: ChunkCopy) -> None:
        """A staged chunk is planned once more, with one try more."""

    def known_tables(self, pipeline: str) -> frozenset[str]:
        """Tables that were captured when the pipeline last started, copied or not."""

    def add_known_tables(self, pipeline: str, names: Sequence[str]) -> None: ...
