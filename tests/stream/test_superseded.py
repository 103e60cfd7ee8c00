"""Which dead letters newer events supersede: real log, real store, no Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill.dlq import DeadLetters
from tidemill.errors import Poisoned
from tidemill.log import BlockRef, LogConfig, LogReader, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import POSITION, UNCHANGED, Block, Op
from tidemill.model.change import Committed
from tidemill.model.delivery import Delivery
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.stream import superseded
from tidemill.stream.lane.poison import dead_letters_of
from tidemill.stream.superseded import Follower


def event(op: Op, number: int, *, old: int | None = None, unchanged: bool = False, table: Table | None = None) -> Block:
    """One event of the row `number`; `old` is the key that it had before."""
    block = make_block(1, ops=op, first_id=number, table=table)
    batch = block.batch
    if old is not None:
        at = batch.schema.get_field_index("key")
        batch = batch.set_column(at, "key", make_block(1, ops=op, first_id=old, table=table).batch.column("key"))
    if unchanged:
        batch = batch.append_column("unchanged", pa.array([[6]], UNCHANGED))
    return Block(block.table, batch)


class Works:
    """A log and a store; `add` appends events one by one, `deliver` says that sink s has them."""

    def __init__(self, directory: Path) -> None:
        self.log = LogWriter.open(str(directory / "log"), LogConfig.model_validate({"fsync": False}))
        self.reader = LogReader(str(directory / "log"))
        self.store = DeadLetters(directory / "dlq.sqlite")
        self.follower = self.restarted()

    def add(self, *blocks: Block) -> None:
        for block in blocks:
            truncates = block.batch.column("op")[0].as_py() == Op.TRUNCATE
            barrier = Barrier.TRUNCATE if truncates else Barrier.NONE
            here = Position(f"0/{self.log.tail.offset:X}")
            at = block.batch.schema.get_field_index("position")
            column = pa.array([here]).dictionary_encode().cast(POSITION)
            batch = block.batch.set_column(at, block.batch.schema.field(at), column)
            self.log.append(Committed((Block(block.table, batch),), 1, ((1, here),), barrier))

    def refuse(self, *offsets: int) -> None:
        blocks = [self.reader.read(ref) for ref in self.reader.refs(0, self.log.tail.offset)]
        delivery = Delivery("p", "src", 0, self.log.tail.offset, 0, 1, lambda: iter(blocks))
        self.store.put(dead_letters_of(Poisoned(dict.fromkeys(offsets, "never")), delivery, "s"))

    def restarted(self, reached: int = 0) -> Follower:
        follower = Follower(self.store, ("s",), "p")
        follower.begin(reached)
        return follower

    def deliver(self, start: int, end: int, left_out: Sequence[int] = ()) -> None:
        self.follower.refresh(start)
        self.follower.compare(self.reader, start, end, {"s": set(left_out)})

    @property
    def found(self) -> list[tuple[int, str, int | None]]:
        return [
            (dead_letter.offset, dead_letter.superseded, dead_letter.superseded_by)
            for dead_letter in self.store.dead_letters()
        ]


@pytest.fixture
def works(tmp_path: Path) -> Works:
    return Works(tmp_path)


NONE, PARTLY, WHOLLY = "", "partly", "wholly"
INSERT, UPDATE, DELETE = Op.INSERT, Op.UPDATE, Op.DELETE
OTHER = make_table("other")
REKEYED = make_table(key=("id", "customer"))


def with_id(native: str, arrow: pa.DataType) -> Table:
    """The same table after its key's type was changed."""
    before = make_table()
    columns = tuple(
        replace(each, type=replace(each.type, native=native, arrow=arrow)) if each.name == "id" else each
        for each in before.columns
    )
    return replace(before, columns=columns, version=2, sequence=2).with_fingerprint()


@pytest.mark.parametrize(
    ("dead_letter", "newer", "expected"),
    [
        (event(INSERT, 5), event(UPDATE, 5), WHOLLY),
        (event(INSERT, 5), event(DELETE, 5), WHOLLY),
        (event(DELETE, 5), event(INSERT, 5), WHOLLY),
        (event(INSERT, 5), event(UPDATE, 6), NONE),
        (event(INSERT, 5), event(UPDATE, 5, table=OTHER), NONE),
        (event(INSERT, 5), make_block(1, ops=Op.TRUNCATE), WHOLLY),
        (event(INSERT, 5), make_block(1, ops=Op.TRUNCATE, table=OTHER), NONE),
        (event(INSERT, 5), event(UPDATE, 5, unchanged=True), PARTLY),
        (event(INSERT, 5), event(UPDATE, 7, old=5), WHOLLY),  # the row moved away
        (event(INSERT, 7), event(UPDATE, 7, old=5), WHOLLY),
        (event(UPDATE, 7, old=5), event(UPDATE, 7), PARTLY),  # the row that it was before is still there
        (event(UPDATE, 7, old=5), event(INSERT, 5), PARTLY),
        (event(UPDATE, 7, old=5), event(UPDATE, 7, old=5), WHOLLY),
        (make_block(1, ops=Op.TRUNCATE), event(INSERT, 9), PARTLY),
        (event(INSERT, 5), event(UPDATE, 9, table=REKEYED), PARTLY),  # cannot be compared
        (event(INSERT, 5), event(UPDATE, 5, table=with_id("integer", pa.int32())), WHOLLY),
        (event(INSERT, 5), event(UPDATE, 5, table=with_id("numeric(12,2)", pa.decimal128(12, 2))), PARTLY),
        (event(INSERT, 5), event(UPDATE, 9, table=with_id("double precision", pa.float64())), PARTLY),
        (make_block(1, table=make_table(key=())), make_block(1, table=make_table(key=())), NONE),
    ],
)
def test_a_newer_event_supersedes_letters_of_its_row(
    works: Works, dead_letter: Block, newer: Block, expected: str
) -> None:
    works.add(dead_letter)
    works.refuse(0)
    works.deliver(0, 1, [0])
    assert works.found == [(0, NONE, None)], "the letter itself was not delivered"
    works.add(newer)
    works.deliver(1, 2)
    assert works.found == [(0, expected, 1 if expected else None)]
    works.deliver(1, 2)
    assert works.found == [(0, expected, 1 if expected else None)], "the batch comes again"


def test_later_events_of_the_same_batch_count_and_earlier_and_refused_ones_do_not(works: Works) -> None:
    works.add(event(INSERT, 5), event(UPDATE, 5), event(UPDATE, 5), event(INSERT, 6), event(UPDATE, 6))
    works.refuse(1, 2, 3)
    works.deliver(0, 5, [1, 2, 3])
    assert works.found == [(1, NONE, None), (2, NONE, None), (3, WHOLLY, 4)]


def test_what_is_partly_superseded_becomes_so_wholly_also_after_a_restart(works: Works) -> None:
    works.add(event(UPDATE, 7, old=5), event(INSERT, 7))
    works.refuse(0)
    works.deliver(0, 2, [0])
    assert works.found == [(0, PARTLY, 1)]
    works.follower = works.restarted(2)
    works.add(event(INSERT, 8), event(DELETE, 5))
    works.deliver(2, 4)
    assert works.found == [(0, WHOLLY, 3)]


def test_different_keys_with_one_hash_are_told_apart(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superseded, "key_hashes", lambda block, key, sides: np.zeros(block.rows, np.uint64))
    works.add(event(INSERT, 5))
    works.refuse(0)
    works.add(event(UPDATE, 6))
    works.deliver(0, 2, [0])
    assert works.found == [(0, NONE, None)]
    block = make_block(3, ops=UPDATE, first_id=4)  # keys 4, 5 and 6 in one block
    works.log.append(Committed((block,), 3, ((3, Position("0/9")),)))
    works.deliver(2, 5)
    assert works.found == [(0, WHOLLY, 3)]


def test_a_letter_whose_event_was_taken_after_all_is_superseded_by_itself(works: Works) -> None:
    works.add(event(INSERT, 5))
    works.refuse(0)
    works.deliver(0, 1)
    assert works.found == [(0, WHOLLY, 0)]


def test_blocks_of_tables_without_letters_are_not_read(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    works.add(event(INSERT, 5))
    works.refuse(0)
    works.deliver(0, 1, [0])
    works.add(event(INSERT, 5, table=OTHER), event(UPDATE, 5), event(UPDATE, 5))
    read: list[str] = []
    whole: Callable[[BlockRef], Block] = works.reader.read

    def reading(ref: BlockRef) -> Block:
        read.append(ref.table)
        return whole(ref)

    monkeypatch.setattr(works.reader, "read", reading)
    works.deliver(1, 3)
    assert read == ["public.orders"]
    works.deliver(3, 4)
    assert read == ["public.orders"], "no letter is left that could be superseded"


def test_letters_from_before_they_were_followed_are_followed_from_the_next_start_on(
    works: Works, tmp_path: Path
) -> None:
    works.add(event(INSERT, 5), event(UPDATE, 5), event(INSERT, 6))
    works.refuse(0)
    with sqlite3.connect(tmp_path / "dlq.sqlite") as db:
        db.execute("DROP TABLE followed")  # as an older version left it
    works.store.close()
    works.store = DeadLetters(tmp_path / "dlq.sqlite")
    (dead_letter,) = works.store.dead_letters()
    assert dead_letter.followed_from is None
    works.follower = works.restarted(2)
    (dead_letter,) = works.store.dead_letters()
    assert dead_letter.followed_from == 2
    works.add(event(DELETE, 5))
    works.deliver(2, 4)
    assert works.found == [(0, WHOLLY, 3)]


def test_a_letter_that_is_purged_meanwhile_is_no_trouble(works: Works) -> None:
    works.add(event(INSERT, 5), event(UPDATE, 5))
    works.refuse(0)
    works.follower.refresh(0)
    works.store.remove([dead_letter.number for dead_letter in works.store.dead_letters()])
    works.deliver(0, 2, [0])
    assert works.found == []
