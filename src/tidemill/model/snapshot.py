"""A snapshot's nouns: the tables to copy, the chunks they are cut into, and what a chunk's read says about itself."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.model.position import Offset, Position
from tidemill.model.table import Table

Bound = tuple[str, ...]
"""A key at which a chunk ends: one text per key column, as the source prints it. Only its reader interprets it."""


class SnapshotMode(enum.StrEnum):
    NEVER = "never"
    INITIAL = "initial"
    ALWAYS = "always"
    WHEN_NEEDED = "when_needed"


class SnapshotState(enum.StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DONE = "done"


class TableState(enum.StrEnum):
    """Where a table's copy stands. `READY`: every chunk is in the log, and the stream goes on from there."""

    PENDING = "pending"
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    READY = "ready"
    FAILED = "failed"


class ChunkState(enum.StrEnum):
    """Of one that is not in the log yet."""

    PLANNED = "planned"
    STAGED = "staged"


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to copy. `table` is its structure, as the stream would give it, not yet numbered. `key` are the columns
    that chunks are cut by, empty where the table can only be read as one. `parts` are the partitions that hold its
    rows, in words of the reader; a plain table is one part without a name. `estimate` is a number of rows, -1 if
    unknown. `high`: the structure holds at this position of the stream or before it. `token` is what the reader wants
    to know of the table when it reads it: by what it tells that the structure changed, in words of its own. `where`:
    the filter that holds for all of its copy, empty for none; None where the document says."""

    table: Table
    key: tuple[str, ...]
    estimate: int
    high: Position
    parts: tuple[str, ...] = ("",)
    token: str = ""
    where: str | None = None

    @property
    def name(self) -> str:
        return self.table.full_name

    def to_json(self) -> str:
        doc = {
            "table": self.table.to_json().decode(), "key": self.key, "estimate": self.estimate, "high": self.high,
            "parts": self.parts, "token": self.token, "where": self.where,
        }  # fmt: skip
        return orjson.dumps(doc).decode()

    @staticmethod
    @functools.lru_cache(maxsize=4096)  # read again at every look into the state store
    def from_json(text: str) -> SnapshotTable:
        doc: dict[str, Any] = orjson.loads(text)
        return SnapshotTable(
            Table.from_json(doc["table"]), tuple(doc["key"]), doc["estimate"], Position(doc["high"]),
            tuple(doc["parts"]), doc["token"], doc.get("where"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chunk:
    """A key range of one part of a table: after `lower`, up to and with `upper`; None is the end on that side. With
    `points`, only the rows with these keys, and no range: their texts are as Arrow prints the values, bytes in hex.
    `where` is a condition of the user's, empty for all rows. `seen`: the read counts only if it is proven to see all
    that the log has up to this offset; -1: whatever it sees."""

    table: str
    number: int
    part: str = ""
    lower: Bound | None = None
    upper: Bound | None = None
    where: str = ""
    points: tuple[Bound, ...] = ()
    seen: Offset = -1

    def to_json(self) -> str:
        return orjson.dumps(
            [self.table, self.number, self.part, self.lower, self.upper, self.where, self.points, self.seen]
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> Chunk:
        table, number, part, lower, upper, where, points, seen = orjson.loads(text)
        return cls(
            table, number, part, None if lower is None else tuple(lower), None if upper is None else tuple(upper),
            where, tuple(tuple(point) for point in points), seen,
        )  # fmt: skip
