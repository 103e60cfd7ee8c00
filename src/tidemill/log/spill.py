"""A transaction written to the log while it is still open at the source, so that its size costs no memory.

It lives in files of its own that no index names. Its commit gives them a segment's name, and its index record
makes it visible; until then nobody sees it, and a writer that opens the log removes what a dead one left behind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemill.errors import LogError, SpillLost
from tidemill.log import codec
from tidemill.log.entry import BlockRef, Constants, segment_name
from tidemill.log.store import Store
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.change import Spilled
from tidemill.model.columns import column, values
from tidemill.model.position import Offset

PREFIX = "spill-"


def place(
    blocks: Iterable[Block], segment: str, at: int, base: Offset, barrier: Barrier = Barrier.NONE
) -> tuple[list[BlockRef], list[pa.Buffer | bytes]]:
    """The blocks' bytes, one after the other from `at` on, and their references."""
    refs: list[BlockRef] = []
    buffers: list[pa.Buffer | bytes] = []
    for block in blocks:
        if not block.rows:
            continue
        pieces = codec.dump(block)
        size, crc = 0, 0
        for piece in pieces:
            size, crc = size + len(piece), zlib.crc32(piece, crc)
        offsets = block.batch.column(0)
        ref = BlockRef(
            segment, at, size, crc, base, base + offsets[0].as_py(), base + offsets[-1].as_py() + 1,
            block.table.full_name, block.table.version, block.table.fingerprint, block.rows, bool(barrier),
        )  # fmt: skip
        refs.append(ref)
        buffers += pieces
        at += size
    return refs, buffers


class Spill:
    """Blocks of one open transaction. Where files grow there is one; in an object store, one object per piece."""

    def __init__(self, store: Store, transaction: int, label: str = "") -> None:
        self.transaction = transaction
        self.events = 0
        self.barrier = Barrier.NONE
        self.refs: list[BlockRef] = []
        self._store = store
        self._label = label or f"{PREFIX}{transaction}"
        self._pieces: dict[str, int] = {}
        """Files and how long they are."""

    @property
    def adopted(self) -> bool:
        """Whether its files have the names of a segment."""
        return any(not name.startswith(PREFIX) for name in self._pieces)

    @property
    def bytes(self) -> int:
        return sum(ref.size for ref in self.refs)

    def add(self, piece: Spilled) -> None:
        """A piece that counts from 0 again is the source starting over after a reconnect: what was there goes."""
        blocks = [block for block in piece.blocks if block.rows]
        first = min((block.batch.column(0)[0].as_py() for block in blocks), default=self.events)
        if first == 0 and self.events:
            self.drop()
        elif first != self.events:
            raise SpillLost(
                f"transaction {self.transaction} goes on at its event {first}, but {self.events} events of it are here",
                where=self._store.label,
            )
        self.write(blocks)
        self.events += piece.events
        self.barrier |= piece.barrier

    def write(self, blocks: Iterable[Block]) -> None:
        name, at = self._next()
        refs, buffers = place(blocks, name, at, 0)
        if refs:
            try:
                self._store.write(name, at, buffers)
            except BaseException:
                if at == 0:
                    with suppress(LogError):
                        self._store.remove(name)
                raise
            self._pieces[name] = refs[-1].at + refs[-1].size
            self.refs += refs

    def drop(self) -> None:
        for name in self._pieces:
            self._store.remove(name)
        self.events, self.barrier, self.refs, self._pieces = 0, Barrier.NONE, [], {}

    def blocks(self) -> Iterator[Block]:
        """Read and not mapped: pages of a mapped file would count as the capture process's memory."""
        for ref in self.refs:
            data = self._store.read(ref.segment, ref.at, ref.size)
            if len(data) < ref.size:
                raise self._lost_error(ref.segment)
            yield codec.load_spilled(pa.py_buffer(data))

    def without(self, aborted: frozenset[int]) -> Spill:
        """A copy, block by block, without the rows of rolled-back subtransactions, `offset` and `ordinal` dense again;
        itself when none of its rows was rolled back.

        Reads twice: the rows of one transaction interleave between blocks, so how many are gone before a row is only
        known when all were seen. That takes a byte of memory per event.
        """
        gone = np.zeros(self.events, bool)
        rolled_back = np.array(sorted(aborted), np.uint64)
        for block in self.blocks():
            gone[_offsets(block)[np.isin(_subtx(block), rolled_back)]] = True
        if not gone.any():
            return self
        edges = np.flatnonzero(np.diff(gone, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2]
        lost = np.concatenate([[0], np.cumsum(ends - starts)])
        kept = Spill(self._store, self.transaction, f"{PREFIX}{self.transaction}-kept")
        try:
            for block in self.blocks():
                old = _offsets(block)
                stays = ~gone[old]
                if stays.any():
                    new = old[stays] - lost[np.searchsorted(starts, old[stays])]
                    kept.write([_renumber(block, stays, new)])
        except BaseException:
            kept.drop()
            raise
        kept.events = self.events - int(lost[-1])
        kept.barrier = self.barrier
        return kept

    def adopt(self, base: Offset, constants: Constants) -> tuple[BlockRef, ...]:
        """Gives the files the names of the segment at `base`. `disown` undoes it."""
        names = {}
        try:
            for number, old in enumerate(list(self._pieces)):
                new = segment_name(base) if self._store.appends else self._store.own(f"{base:020d}-{number:06d}.seg")
                if new != old:
                    self._move(old, new)
                    names[old] = new
        except LogError:
            self._rename(names)
            self.disown()
            raise
        self._rename(names)
        return tuple(
            replace(
                ref, base=base, first=base + ref.first, last=base + ref.last, barrier=bool(self.barrier),
                position=constants.position, tx_id=constants.tx_id, commit_time=constants.commit_time,
            )
            for ref in self.refs
        )  # fmt: skip

    def disown(self) -> None:
        names = {}
        for number, old in enumerate(list(self._pieces)):
            if not old.startswith(PREFIX):
                new = f"{self._label}.seg" if self._store.appends else self._piece(number)
                self._move(old, new)
                names[old] = new
        self._rename(names)

    def _move(self, old: str, new: str) -> None:
        try:
            self._store.move(old, new)
        except LogError:
            if not self._store.appends and self._store.size(new) == self._pieces[old]:
                return  # it was moved, and the answer was lost; what is left of the old one goes at the next open
            if self._store.size(old) is None:
                raise self._lost_error(old) from None
            raise

    def _lost_error(self, name: str) -> SpillLost:
        return SpillLost(f"a piece of transaction {self.transaction} is gone: {name}", where=self._store.label)

    def _rename(self, names: dict[str, str]) -> None:
        self._pieces = {names.get(name, name): size for name, size in self._pieces.items()}
        self.refs = [replace(ref, segment=names.get(ref.segment, ref.segment)) for ref in self.refs]

    def _next(self) -> tuple[str, int]:
        if self._store.appends:
            name = f"{self._label}.seg"
            return name, self._pieces.get(name, 0)
        return self._piece(len(self._pieces)), 0

    def _piece(self, number: int) -> str:
        return self._store.own(f"{self._label}-{number:06d}.seg")


def _offsets(block: Block) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return values(block.batch.column("offset"), np.uint64).astype(np.int64)


def _subtx(block: Block) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return values(block.batch.column("subtx"), np.uint64)


def _renumber(block: Block, stays: np.ndarray[tuple[int], np.dtype[np.bool_]], new: np.ndarray) -> Block:
    batch = block.batch if stays.all() else block.batch.take(column(np.flatnonzero(stays), pa.int64()))
    columns = list(batch.columns)
    for name in ("offset", "ordinal"):
        place = batch.schema.get_field_index(name)
        columns[place] = column(new, pa.int64()).cast(batch.schema.field(place).type)
    return Block(block.table, pa.record_batch(columns, schema=batch.schema))
