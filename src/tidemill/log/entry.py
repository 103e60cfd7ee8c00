"""The log's values: where it ends, one append, and a reference to one block of it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

import orjson

from tidemill.model.barrier import Barrier
from tidemill.model.position import Offset, Position


@dataclass(frozen=True, slots=True)
class Tail:
    """A place between two events: the `offset` of the next one, and where the source resumes for it."""

    offset: Offset
    position: Position


FORMAT, _SHARED = 3, 2
"""Of an entry's document; one that names none has format 1. 2 adds `barriers`, the kinds of the barrier by name, and
the `base` of blocks that were staged. 3 has `constants` of each block, and is written only where they differ. A reader
refuses a format that is newer than its own, before anything is cut off or written."""

NOWHERE = Position("")
ORIGIN = Tail(0, NOWHERE)


@dataclass(frozen=True, slots=True)
class Constants:
    """What a spilled transaction's rows have in common and did not know while it was open; a chunk's rows likewise.
    `tx_id` is 0 where the source has no number for it."""

    position: Position
    tx_id: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One block's place in the log; small enough to travel to a Spark task in place of the rows.

    The offsets in its bytes count from `base`. Covers the block's rows with `first <= offset < last`. Tables
    interleave, so that a range may hold fewer of the block's rows than it has offsets, even none; `rows` counts the
    whole block.
    """

    segment: str
    at: int
    size: int
    crc: int
    base: Offset
    first: Offset
    last: Offset
    table: str
    version: int
    fingerprint: str
    rows: int
    barrier: bool = False
    position: Position | None = None
    tx_id: int | None = None
    commit_time: int | None = None

    @property
    def is_copied(self) -> bool:
        """Whether a snapshot brought it, not the stream."""
        return self.position is not None and self.position.startswith("snapshot:")

    @property
    def constants(self) -> Constants | None:
        if self.position is None or self.tx_id is None or self.commit_time is None:
            return None
        return Constants(self.position, self.tx_id, self.commit_time)

    def to_json(self) -> str:
        return orjson.dumps(astuple(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> BlockRef:
        return cls(*orjson.loads(text))

    def clip(self, start: Offset, end: Offset) -> BlockRef:
        return replace(self, first=max(self.first, start), last=min(self.last, end))

    def overlaps(self, start: Offset, end: Offset) -> bool:
        return self.first < end and start < self.last


@dataclass(frozen=True, slots=True)
class Entry:
    """One append. `marks` count events from `base`; `since` is where the source resumes at `base` itself."""

    base: Offset
    rows: int
    bytes: int
    written_at: int
    barrier: Barrier
    marks: tuple[tuple[Offset, Position], ...]
    blocks: tuple[BlockRef, ...]
    since: Position = NOWHERE

    @property
    def end(self) -> Offset:
        return self.base + self.rows

    @property
    def tail(self) -> Tail:
        return Tail(self.end, self.marks[-1][1])

    def to_doc(self) -> dict[str, Any]:
        """Offsets of blocks are written relative to `base`, marks as two columns (a million of them stay cheap)."""
        shared = next((ref.constants for ref in self.blocks), None)
        mixed = any(ref.constants != shared for ref in self.blocks)
        doc: dict[str, Any] = {
            "base": self.base, "rows": self.rows, "bytes": self.bytes, "written_at": self.written_at,
            "format": FORMAT if mixed else _SHARED, "barriers": self.barrier.kinds, "since": self.since,
            "marks": [[events for events, _ in self.marks], [position for _, position in self.marks]],
            "blocks": [block_to_doc(self.base, ref) for ref in self.blocks],
        }  # fmt: skip
        if mixed:
            for block, ref in zip(doc["blocks"], self.blocks, strict=True):
                block["constants"] = ref.constants and astuple(ref.constants)
        if all(ref.base == self.base for ref in self.blocks):
            doc["barrier"] = bool(self.barrier)  # a reader of format 1 would misread the others, and stops without it
        if shared is not None and not mixed:
            doc |= {"position": shared.position, "tx_id": shared.tx_id, "commit_time": shared.commit_time}
        return doc

    @classmethod
    def from_doc(cls, doc: dict[str, Any], segment: str) -> Entry:
        """`segment` is the file the index belongs to; blocks are there unless they say otherwise."""
        blocks = tuple(block_from_doc(doc, block, segment) for block in doc["blocks"])
        return cls(
            doc["base"], doc["rows"], doc["bytes"], doc["written_at"], barrier_of(doc),
            tuple(zip(*doc["marks"], strict=True)), blocks, doc["since"],
        )  # fmt: skip

    def refs(self, start: Offset, end: Offset) -> Iterator[BlockRef]:
        return (ref.clip(start, end) for ref in self.blocks if ref.overlaps(start, end))

    def mark_at(self, offset: Offset) -> Tail:
        """The last place at or before `offset` at which the source can resume."""
        after = bisect.bisect_right(self.marks, offset - self.base, key=lambda mark: mark[0])
        if not after:
            return Tail(self.base, self.since)
        events, position = self.marks[after - 1]
        return Tail(self.base + events, position)


def barrier_of(doc: dict[str, Any]) -> Barrier:
    """Of an entry's document. One of format 1 says only whether there is one."""
    return Barrier.of(doc["barriers"]) if "barriers" in doc else Barrier(bool(doc["barrier"]))


def segment_name(base: Offset) -> str:
    return f"{base:020d}.seg"


def index_name(base: Offset) -> str:
    return f"{base:020d}.idx"


def block_to_doc(base: Offset, ref: BlockRef) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "table": ref.table, "version": ref.version, "fingerprint": ref.fingerprint, "rows": ref.rows,
        "first": ref.first - base, "last": ref.last - base, "at": ref.at, "size": ref.size, "crc": ref.crc,
    }  # fmt: skip
    if "-" in ref.segment:  # a file of its own: a piece of a transaction in an object store, or one that was staged
        doc["segment"] = ref.segment
    if ref.base != base:
        doc["base"] = ref.base - base
    return doc


def block_from_doc(entry: dict[str, Any], doc: dict[str, Any], segment: str) -> BlockRef:
    base = entry["base"]
    shared = (entry.get("position"), entry.get("tx_id"), entry.get("commit_time"))
    position, tx_id, commit_time = doc.get("constants") or shared
    return BlockRef(
        doc.get("segment", segment), doc["at"], doc["size"], doc["crc"],
        base + doc.get("base", 0), base + doc["first"], base + doc["last"],
        doc["table"], doc["version"], doc["fingerprint"], doc["rows"], bool(barrier_of(entry)),
        position, tx_id, commit_time,
    )  # fmt: skip
