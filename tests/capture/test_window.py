"""Which rows of a chunk are still true when the log has moved on: the events of its window win, and leave no holes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tests.support.seed import dice
from tidemill.capture.window import ChunkWindow, Verdict, Windowed
from tidemill.model.block import ODD, Block, Op
from tidemill.model.rowkeys import key_strings, moved_with_holes
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

INT = DataType("bigint", pa.int64(), JsonForm.NUMBER)
TEXT = DataType("text", pa.string(), JsonForm.STRING)


def table(key: Sequence[str] = ("a", "b"), extra: int = 0) -> Table:
    columns = [
        Column("a", INT, nullable=False),
        Column("b", TEXT, nullable=False),
        Column("v", INT),
        Column("big", TEXT),
    ]
    columns += [Column(f"more{n}", INT) for n in range(extra)]
    return Table("d", "s", "t", tuple(columns), tuple(key), version=1 + extra).with_fingerprint()


def apply_window(chunk: Sequence[Block], events: Sequence[Block], of: Table) -> Windowed:
    return ChunkWindow(events, of).filter(chunk)


@dataclass(frozen=True)
class Event:
    """`holes`: `big` was not sent. `old`: the key before, where it was sent."""

    op: Op
    row: tuple[int, str, int, str] | None = None
    old: tuple[int, str] | None = None
    holes: bool = False


def block(events: Sequence[Event], of: Table | None = None, first: int = 0) -> Block:
    of = of or table()
    image, key = of.arrow_struct(), pa.struct([("a", pa.int64()), ("b", pa.string())])
    more = {c.name: None for c in of.columns[4:]}
    rows = [
        None if e.row is None else dict(zip("abv", e.row, strict=False)) | {"big": None if e.holes else e.row[3]} | more
        for e in events
    ]
    olds = [None if e.old is None else dict(zip("ab", e.old, strict=True)) for e in events]
    columns = {
        "offset": pa.array(range(first, first + len(events)), pa.uint64()),
        "op": pa.array([int(e.op) for e in events], pa.uint8()),
        "ordinal": pa.array(range(first, first + len(events)), pa.uint32()),
        "key": pa.array(olds, key),
        "after": pa.array(rows, image),
        "unchanged": pa.array([[3] if e.holes else None for e in events], pa.list_(pa.uint16())),
    }
    return Block(of, pa.RecordBatch.from_pydict(columns))


def read(*rows: tuple[int, str, int, str], first: int = 0) -> Block:
    return block([Event(Op.READ, row) for row in rows], first=first)


def left(blocks: Sequence[Block]) -> list[tuple[Any, ...]]:
    return [tuple(row["after"].values()) for b in blocks for row in b.batch.to_pylist()]


R1, R2, R3 = (1, "x", 10, "one"), (2, "x", 20, "two"), (3, "y", 30, "three")


def test_a_chunk_without_events_stays_as_it_is() -> None:
    assert apply_window([read(R1, R2)], [], table()).verdict is Verdict.AS_IT_IS
    other = block([Event(Op.INSERT, (9, "x", 0, ""))])
    assert apply_window([read(R1, R2)], [other], table()).verdict is Verdict.AS_IT_IS


def test_rows_of_snapshots_are_no_events() -> None:
    assert apply_window([read(R1)], [read(R1)], table()).verdict is Verdict.AS_IT_IS


def test_an_event_wins_over_the_row_and_a_deleted_row_stays_deleted() -> None:
    window = [block([Event(Op.UPDATE, (1, "x", 11, "one")), Event(Op.DELETE, old=(3, "y"))])]
    found = apply_window([read(R1, R2), read(R3, first=2)], window, table())
    assert found.verdict is Verdict.FILTERED
    assert left(found.blocks) == [R2]
    assert found.blocks[0].batch.column("offset").to_pylist() == [0]
    assert found.blocks[0].batch.column("ordinal").to_pylist() == [1], "the identity of a row is its place in the chunk"


def test_keys_that_run_into_the_same_text_are_told_apart() -> None:
    of = table(("b", "big"))
    chunk = Block(of, read((1, "a", 0, "bc"), (2, "ab", 0, "c")).batch)
    window = Block(of, block([Event(Op.UPDATE, (1, "a", 5, "bc"))]).batch)
    assert left(apply_window([chunk], [window], of).blocks) == [(2, "ab", 0, "c")]


def test_what_an_event_left_out_is_completed_from_the_chunk() -> None:
    window = [block([Event(Op.UPDATE, (1, "x", 11, ""), holes=True), Event(Op.UPDATE, (1, "x", 12, ""), holes=True)])]
    assert left(apply_window([read(R1, R2)], window, table()).blocks) == [(1, "x", 12, "one"), R2]


def test_a_later_whole_event_needs_no_completion() -> None:
    window = [block([Event(Op.UPDATE, (1, "x", 11, ""), holes=True), Event(Op.UPDATE, (1, "x", 12, "new"))])]
    assert left(apply_window([read(R1, R2)], window, table()).blocks) == [R2]


def test_a_whole_event_before_the_one_with_a_hole_is_enough() -> None:
    window = [block([Event(Op.UPDATE, (1, "x", 11, "new")), Event(Op.UPDATE, (1, "x", 12, ""), holes=True)])]
    assert left(apply_window([read(R1, R2)], window, table()).blocks) == [R2]


def test_a_row_that_moved_with_a_hole_leaves_the_chunk_to_be_read_again() -> None:
    moved = block([Event(Op.UPDATE, (7, "z", 11, ""), old=(1, "x"), holes=True)])
    again = block([Event(Op.UPDATE, (7, "z", 12, ""), holes=True)], first=1)
    assert left(apply_window([read(R1, R2)], [moved, again], table()).blocks) == [R2]
    assert key_strings(moved, moved_with_holes(moved)) == [("7", "z")]


def test_a_row_that_came_back_under_the_key_of_one_that_moved_is_not_taken_for_it() -> None:
    """The window begins before the move, which the chunk has seen; what it read is the later row of that key."""
    window = [block([Event(Op.UPDATE, (7, "z", 11, ""), old=(1, "x"), holes=True), Event(Op.INSERT, R1)])]
    assert left(apply_window([read(R1, R2)], window, table()).blocks) == [R2]


def test_a_truncated_table_leaves_nothing_of_the_chunk() -> None:
    found = apply_window([read(R1, R2)], [block([Event(Op.TRUNCATE), Event(Op.INSERT, R2)])], table())
    assert (found.verdict, found.blocks) == (Verdict.FILTERED, ())


def test_another_structure_in_the_window_makes_the_chunk_be_read_again() -> None:
    changed = block([Event(Op.INSERT, (9, "x", 0, ""))], table(extra=1))
    assert apply_window([read(R1)], [changed], table()).verdict is Verdict.AGAIN


def test_a_table_without_a_key_is_read_again_when_it_changed() -> None:
    none = table(())
    chunk = Block(none, read(R1).batch)
    assert apply_window([chunk], [Block(none, block([Event(Op.INSERT, R2)]).batch)], none).verdict is Verdict.AGAIN
    assert apply_window([chunk], [], none).verdict is Verdict.AS_IT_IS


def test_what_the_type_cannot_hold_travels_with_its_row() -> None:
    chunk = read(R1, R2)
    odd = pa.array([[{"side": 2, "column": 2, "text": "NaN"}], None], ODD)
    chunk = Block(chunk.table, pa.RecordBatch.from_pydict(dict(zip(chunk.batch.schema.names, chunk.batch.columns,
                                                                   strict=True)) | {"odd": odd}))  # fmt: skip
    deleted = apply_window([chunk], [block([Event(Op.DELETE, old=(2, "x"))])], table())
    assert deleted.blocks[0].batch.column("odd").to_pylist() == [[{"side": 2, "column": 2, "text": "NaN"}]]
    hole = apply_window([chunk], [block([Event(Op.UPDATE, (1, "x", 5, ""), holes=True)])], table())
    assert left(hole.blocks) == [(1, "x", 5, "one"), R2]
    assert "odd" not in hole.blocks[0].batch.schema.names, "the event has a value for it"


def test_rows_that_moved_with_holes_are_found_with_their_new_keys() -> None:
    events = block([
        Event(Op.UPDATE, (7, "z", 1, ""), old=(1, "x"), holes=True), Event(Op.UPDATE, (8, "z", 1, ""), holes=True),
        Event(Op.UPDATE, (9, "z", 1, "all"), old=(2, "x")), Event(Op.DELETE, old=(3, "x")),
    ])  # fmt: skip
    assert moved_with_holes(events) == [0]
    assert key_strings(events, [0]) == [("7", "z")]


@pytest.mark.parametrize("run", range(40))
def test_a_copy_of_a_changing_table_ends_up_as_the_table(run: int) -> None:
    """The table is the oracle. It changes at random; a chunk of it is read somewhere, adopted later; its window may
    begin earlier than it had to. Who applies the log in order, and then reads again what moved with a hole, has the
    table."""
    chance = dice("window", run)
    source: dict[tuple[int, str], tuple[int, str]] = {(n, "x"): (n, f"big {n}") for n in range(12)}
    log: list[Event] = []
    snapshots: list[dict[tuple[int, str], tuple[int, str]]] = []
    for step in range(60):
        snapshots.append(dict(source))
        _change(chance, source, log, step)
    read_at = chance.randrange(10, 50)
    begins = chance.randrange(0, read_at + 1)
    rows = [(*key, *value) for key, value in snapshots[read_at].items()]
    chance.shuffle(rows)
    cut = len(rows) // 2
    chunk = [b for b in (read(*rows[:cut]), read(*rows[cut:], first=cut)) if b.rows]
    ends = [0, *sorted(chance.sample(range(1, len(log)), 3)), len(log)]
    window = [
        block(log[max(lo, begins) : hi], first=max(lo, begins)) for lo, hi in pairwise(ends) if hi > max(lo, begins)
    ]
    found = apply_window(chunk, window, table())
    assert found.verdict is not Verdict.AGAIN
    said = left(chunk if found.verdict is Verdict.AS_IT_IS else found.blocks)
    moved = {(int(a), b) for events in window for a, b in key_strings(events, moved_with_holes(events))}
    last = [(*key, *source[key]) for key in moved if key in source]
    sink = _replay([*log, *(Event(Op.READ, row) for row in [*said, *last])])
    assert sink == source


def _change(chance: random.Random, source: dict[tuple[int, str], tuple[int, str]], log: list[Event], step: int) -> None:
    """One event a step: with a hole where the large value did not change."""
    kind = chance.choice(["insert", "update", "update", "hole", "hole", "move", "delete", "truncate"])
    keys = list(source)
    if kind == "truncate" and step % 20 == 7:
        source.clear()
        log.append(Event(Op.TRUNCATE))
        return
    if kind in ("insert", "truncate") or not keys:
        key = (chance.randrange(30), "y")
        log.append(Event(Op.UPDATE if key in source else Op.INSERT, (*key, step, f"new {step}")))
        source[key] = (step, f"new {step}")
        return
    key = chance.choice(keys)
    _, big = source[key]
    if kind == "delete":
        log.append(Event(Op.DELETE, old=key))
        del source[key]
    elif kind == "move":
        to = (100 + step, "m")
        log.append(Event(Op.UPDATE, (*to, step, ""), old=key, holes=True))
        del source[key]
        source[to] = (step, big)
    elif kind == "hole":
        log.append(Event(Op.UPDATE, (*key, step, ""), holes=True))
        source[key] = (step, big)
    else:
        log.append(Event(Op.UPDATE, (*key, step, f"upd {step}")))
        source[key] = (step, f"upd {step}")


def _replay(events: Sequence[Event]) -> dict[tuple[int, str], tuple[int, str]]:
    """As a sink with tables does it. A row that is only known with a hole shows it."""
    rows: dict[tuple[int, str], tuple[int, str]] = {}
    for event in events:
        if event.op is Op.TRUNCATE:
            rows.clear()
        elif event.op is Op.DELETE:
            assert event.old is not None
            rows.pop(event.old, None)
        else:
            assert event.row is not None
            key, value = event.row[:2], event.row[2:]
            before = rows.pop(event.old, None) if event.old else rows.get(key)
            rows[key] = (value[0], (before or (0, "a hole"))[1]) if event.holes else value
    return rows


@pytest.mark.parametrize("run", range(20))
def test_a_window_that_follows_the_log_says_what_one_that_is_read_anew_says(run: int) -> None:
    chance = dice("extended window", run)
    of = table()
    source: dict[tuple[int, str], tuple[int, str]] = {(n, "x"): (n, f"big {n}") for n in range(20)}
    chunk = [read(*((a, b, v, big) for (a, b), (v, big) in source.items()))]
    log: list[Event] = []
    for step in range(60):
        _change(chance, source, log, step)
        if chance.random() < 0.03:
            log.append(Event(chance.choice([Op.TRUNCATE, Op.DDL])))
    blocks, at = [], 0
    while at < len(log):
        size = chance.randint(1, 5)
        blocks.append(block(log[at : at + size], of, first=at))
        at += size
    follows, since, known = ChunkWindow((), of), 0, 0
    while known < len(blocks):
        more = chance.randint(1, 6)
        follows.extend(blocks[known : known + more])
        known += more
        since = chance.randint(since, min(known, len(blocks)))
        first = sum(each.rows for each in blocks[:since])
        follows.drop_before(first)
        anew = ChunkWindow(blocks[since:known], of)
        assert (follows.verdict, follows.why) == (anew.verdict, anew.why)
        followed, expected = follows.filter(chunk), anew.filter(chunk)
        assert followed.verdict is expected.verdict
        assert left(followed.blocks) == left(expected.blocks)
