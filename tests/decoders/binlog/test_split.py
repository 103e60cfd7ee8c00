"""However the network cuts a binlog stream, and wherever the decoder must stop and hand on: the events are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.pgoutput import goldens
from tests.support.binlogstream import decode
from tests.support.decoded import Row, rows
from tidemill.model.change import Change, Committed, Spilled

Pair = tuple[mygoldens.Golden, mygoldens.Stream]

STREAMS = mygoldens.load()
SMALL = [pair for pair in STREAMS if len(pair[1].data) < 3_000]
LARGE = [pair for pair in STREAMS if len(pair[1].data) >= 3_000]

# Spilling begins at once, after a while, or never; the row vectors are nearly always, sometimes, or never full.
limits = {"spill_bytes": st.sampled_from([0, 100, 5_000, 1 << 24]), "capacity": st.sampled_from([2, 3, 7, 64, 1 << 12])}


@pytest.mark.slow  # many examples
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SMALL), st.lists(st.integers(1, 150), max_size=60), *limits.values())
def test_any_split_gives_the_same_events(pair: Pair, chunks: list[int], spill_bytes: int, capacity: int) -> None:
    _same(pair, chunks, spill_bytes, capacity)


@pytest.mark.parametrize("pair", SMALL, ids=map(mygoldens.label, SMALL))
def test_byte_by_byte_gives_the_same_events(pair: Pair) -> None:
    chunks = [1] * len(pair[1].data)
    _same(pair, chunks, spill_bytes=0, capacity=2)
    _same(pair, chunks, spill_bytes=1 << 24, capacity=1 << 12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LARGE), st.integers(0, 2**32), st.integers(50, 20_000), *limits.values())
def test_any_split_of_large_transactions_gives_the_same_events(
    pair: Pair, seed: int, mean: int, spill_bytes: int, capacity: int
) -> None:
    pick = random.Random(seed)
    chunks = [pick.randint(mean // 2, mean * 2) for _ in range(len(pair[1].data) // mean + 1)]
    _same(pair, chunks, spill_bytes, max(capacity, 64))


def test_a_transaction_larger_than_the_limit_leaves_in_pieces() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "many_rows")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, repeat(3_000), spill_bytes=2_000,
                     began=stream.began, capacity=256)  # fmt: skip
    pieces = [change for change in changes if isinstance(change, Spilled)]
    assert len(pieces) > 1
    assert len({piece.transaction for piece in pieces}) <= 2
    mygoldens.check(golden, stream)


def _same(pair: Pair, chunks: list[int], spill_bytes: int, capacity: int) -> None:
    golden, stream = pair
    tables = golden.tables(stream.flavor)
    changes = decode(stream.data, tables, stream.flavor, chunks, began=stream.began, spill_bytes=spill_bytes,
                     capacity=capacity)  # fmt: skip
    assert _first_difference(mygoldens.comparable(rows(changes)), list(golden.expected)) is None
    assert goldens.has_barrier(changes) == golden.barrier
    whole = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began=stream.began)
    assert _through(changes) == _through(whole)
    for change in changes:
        if isinstance(change, Committed):
            events = [mark for mark, _ in change.marks]
            assert events == sorted(events)
            assert events[-1] == change.events == sum(block.rows for block in change.blocks)


def _through(changes: Sequence[Change]) -> object:
    return [change.through for change in changes if hasattr(change, "through")][-1]


def _first_difference(found: list[Row], wanted: list[Row]) -> tuple[Row, Row] | int | None:
    if found == wanted:
        return None
    return next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), len(found))
