"""Transactions written while they are open: invisible until they commit, gone when they do not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.log.conftest import OpenStore
from tests.log.look import events, offsets
from tests.support.blocks import EPOCH, EPOCH_US, make_block, make_change, make_spill, make_table, position
from tidemill.errors import LogError, LogFull
from tidemill.log import LogConfig, LogReader, LogWriter, Tail, acknowledge
from tidemill.model.block import META
from tidemill.model.change import SpillAborted, SpillCommitted, Spilled

CONFIG = LogConfig()


@pytest.fixture
def writer(place: OpenStore) -> Iterator[LogWriter]:
    writer = LogWriter.open(place(), CONFIG)
    yield writer
    writer.close()


def commit(transaction: int, number: int, aborted: frozenset[int] = frozenset()) -> SpillCommitted:
    return SpillCommitted(transaction, position(number), transaction, EPOCH_US, position(number + 1), aborted)


def leftovers(place: OpenStore) -> list[str]:
    return [name for name in place().names() if name.startswith("spill-")]


def test_an_open_transaction_is_invisible_until_it_commits(writer: LogWriter, place: OpenStore) -> None:
    writer.append(make_change(2))
    reader = LogReader(place())
    writer.spill(make_spill(7, 4))
    writer.append(make_change(1, number=2))
    writer.spill(make_spill(7, 3, start=4))
    assert reader.tail() == Tail(3, position(2))
    assert leftovers(place)

    entry = writer.commit_spill(commit(7, 3))
    assert (entry.base, entry.rows, entry.marks) == (3, 7, ((7, position(4)),))
    assert reader.tail() == writer.tail == Tail(10, position(4))
    found = events(reader, 3, 10)
    assert [e["offset"] for e in found] == list(range(3, 10))
    assert [e["ordinal"] for e in found] == list(range(7))
    assert [e["after"]["id"] for e in found] == list(range(7))
    assert {(e["position"], e["tx_id"], e["commit_time"]) for e in found} == {(position(3), 7, EPOCH)}
    assert leftovers(place) == []
    assert reader.position_at(9) == position(2)


def test_a_committed_spill_has_the_columns_of_any_block(writer: LogWriter, place: OpenStore) -> None:
    writer.spill(make_spill(7, 4))
    writer.commit_spill(commit(7, 1))
    reader = LogReader(place())
    block = reader.read(reader.refs(0, 4)[0])
    assert block.batch.schema.equals(make_block(1).batch.schema, check_metadata=True)
    assert block.batch.schema.names[:6] == META.names
    assert block.batch.validate(full=True) is None


def test_the_log_goes_on_after_a_committed_spill_and_after_reopening(writer: LogWriter, place: OpenStore) -> None:
    writer.spill(make_spill(7, 4))
    writer.commit_spill(commit(7, 1))
    writer.append(make_change(3, number=9))
    writer.close()
    again = LogWriter.open(place(), CONFIG)
    assert again.tail == Tail(7, position(9))
    again.append(make_change(3, number=10))
    assert offsets(LogReader(place())) == list(range(10))
    again.close()


def test_rows_of_rolled_back_subtransactions_leave_nothing_behind(writer: LogWriter, place: OpenStore) -> None:
    writer.append(make_change(5))
    writer.spill(make_spill(7, 4, subtx=[7, 8, 8, 7]))
    writer.spill(make_spill(7, 3, start=4, subtx=[8, 9, 9]))
    writer.spill(make_spill(7, 2, start=7, subtx=[8, 8]))
    entry = writer.commit_spill(commit(7, 3, frozenset({8})))
    assert (entry.base, entry.rows) == (5, 4)
    found = events(LogReader(place()), 5, 9)
    assert [e["after"]["id"] for e in found] == [0, 3, 5, 6]
    assert [e["offset"] for e in found] == [5, 6, 7, 8]
    assert [e["ordinal"] for e in found] == [0, 1, 2, 3]
    assert leftovers(place) == []
    writer.append(make_change(1, number=5))
    assert offsets(LogReader(place())) == list(range(10))


@pytest.mark.parametrize("seed", range(8))
def test_interleaved_tables_stay_dense_whatever_is_rolled_back(writer: LogWriter, place: OpenStore, seed: int) -> None:
    rng = random.Random(seed)
    tables = [make_table(name) for name in ("orders", "items", "events")]
    expected, start = [], 0
    aborted = frozenset(rng.sample(range(10, 20), 5))
    for _ in range(6):
        count = rng.randint(1, 40)
        owners = [rng.randrange(3) for _ in range(count)]
        subtx = [rng.choice([7, *range(10, 20)]) for _ in range(count)]
        blocks = []
        for number, table in enumerate(tables):
            rows = [i for i in range(count) if owners[i] == number]
            if rows:
                numbers = [start + i for i in rows]
                block = make_block(
                    len(rows), table=table, offsets=numbers, ordinals=numbers, positions=None, first_id=start * 100,
                    subtx=[subtx[i] for i in rows],
                )  # fmt: skip
                blocks.append(block)
                ids = block.batch.column("after").field("id").to_pylist()
                expected += [
                    (start + i, table.name, key)
                    for i, key in zip(rows, ids, strict=True)
                    if subtx[i] not in aborted
                ]  # fmt: skip
        writer.spill(Spilled(7, tuple(blocks), count))
        start += count
    writer.commit_spill(commit(7, 1, aborted))
    found = events(LogReader(place()))
    assert [(e["table"], e["after"]["id"]) for e in found] == [(name, key) for _, name, key in sorted(expected)]
    assert [e["offset"] for e in found] == [e["ordinal"] for e in found] == list(range(len(expected)))


def test_a_transaction_of_which_everything_was_rolled_back_only_moves_the_position(
    writer: LogWriter, place: OpenStore
) -> None:
    writer.spill(make_spill(7, 4, subtx=[8] * 4))
    assert writer.commit_spill(commit(7, 1, frozenset({8}))).rows == 0
    assert writer.tail == Tail(0, position(2))
    assert [name for name in place().names() if name.endswith(".seg")] == []
    assert writer.commit_spill(commit(99, 4)).rows == 0
    assert LogReader(place()).tail() == Tail(0, position(5))


def test_a_rolled_back_transaction_leaves_nothing_behind(writer: LogWriter, place: OpenStore) -> None:
    writer.spill(make_spill(7, 4))
    writer.spill(make_spill(8, 4))
    writer.drop_spill(SpillAborted(7))
    writer.drop_spill(SpillAborted(7))
    assert all(name.startswith("spill-8") for name in leftovers(place))
    writer.close()
    assert leftovers(place) == []
    assert LogReader(place()).tail().offset == 0


def test_spills_of_a_dead_process_are_removed_when_the_log_is_opened(place: OpenStore) -> None:
    dead = LogWriter.open(place(), CONFIG)
    dead.spill(make_spill(7, 4))
    dead._store.close()
    assert leftovers(place)
    LogWriter.open(place(), CONFIG).close()
    assert leftovers(place) == []


def test_a_source_that_starts_a_transaction_over_replaces_what_was_there(writer: LogWriter, place: OpenStore) -> None:
    writer.spill(make_spill(7, 4))
    writer.spill(make_spill(7, 2, start=4))
    writer.spill(make_spill(7, 5))
    writer.commit_spill(commit(7, 1))
    assert offsets(LogReader(place())) == [0, 1, 2, 3, 4]
    writer.spill(make_spill(8, 4))
    with pytest.raises(LogError, match="goes on at its event 6"):
        writer.spill(make_spill(8, 2, start=6))


def test_two_transactions_open_at_once_do_not_mix(writer: LogWriter, place: OpenStore) -> None:
    writer.spill(make_spill(7, 2))
    writer.spill(make_spill(8, 3, table=make_table("items")))
    writer.spill(make_spill(7, 2, start=2))
    writer.commit_spill(commit(8, 1))
    writer.commit_spill(commit(7, 3))
    found = events(LogReader(place()))
    assert [(e["table"], e["tx_id"]) for e in found] == [("items", 8)] * 3 + [("orders", 7)] * 4


def test_an_open_transaction_waits_too_when_the_log_is_full(place: OpenStore) -> None:
    writer = LogWriter.open(place(), LogConfig(max_bytes=1))
    writer.spill(make_spill(7, 2))
    writer.append(make_change(1))
    with pytest.raises(LogFull):
        writer.spill(make_spill(7, 2, start=2))
    acknowledge(place(), writer.tail)
    writer.close()


def test_memory_of_an_open_transaction_does_not_grow_with_its_rows(writer: LogWriter) -> None:
    for start in range(0, 20_000, 2_000):
        writer.spill(make_spill(7, 2_000, start=start))
    assert len(writer._spills[7].refs) == 10
    assert writer.commit_spill(commit(7, 1)).rows == 20_000
