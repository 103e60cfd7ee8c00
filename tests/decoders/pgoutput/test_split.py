"""However the network cuts the stream, and wherever the decoder must stop and hand on, the events are the same."""

from __future__ import annotations

import random
from functools import cache
from itertools import repeat
from typing import TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.pgoutput import goldens
from tests.support.decoded import Row, rows
from tests.support.pgstream import decode, frames, tables_of
from tidemill.model.change import Change, Committed, SpillCommitted, Spilled
from tidemill.sources.postgres.lsn import parse_lsn

STREAMS = goldens.load()
SMALL = [pair for pair in STREAMS if len(pair[1].data) < 2_000]
LARGE = [pair for pair in STREAMS if len(pair[1].data) >= 2_000]

# Spilling begins at once, after a while, or never; the row vectors are nearly always, sometimes, or never full.
limits = {"spill_bytes": st.sampled_from([0, 100, 5_000, 1 << 24]), "capacity": st.sampled_from([2, 3, 7, 64, 1 << 12])}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SMALL), st.lists(st.integers(1, 120), max_size=60), *limits.values())
def test_any_split_gives_the_same_events(
    pair: tuple[goldens.Golden, goldens.Stream], chunks: list[int], spill_bytes: int, capacity: int
) -> None:
    _same(pair, chunks, spill_bytes, capacity)


@pytest.mark.parametrize("pair", SMALL, ids=map(goldens.label, SMALL))
def test_byte_by_byte_gives_the_same_events(pair: tuple[goldens.Golden, goldens.Stream]) -> None:
    chunks = [1] * len(pair[1].data)
    _same(pair, chunks, spill_bytes=0, capacity=2)
    _same(pair, chunks, spill_bytes=1 << 24, capacity=1 << 12)


@pytest.mark.slow  # many examples
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LARGE), st.integers(0, 2**32), st.integers(50, 20_000), *limits.values())
def test_any_split_of_large_transactions_gives_the_same_events(
    pair: tuple[goldens.Golden, goldens.Stream], seed: int, mean: int, spill_bytes: int, capacity: int
) -> None:
    pick = random.Random(seed)
    chunks = [pick.randint(mean // 2, mean * 2) for _ in range(len(pair[1].data) // mean + 1)]
    _same(pair, chunks, spill_bytes, max(capacity, 64))


@pytest.mark.parametrize("pair", STREAMS, ids=map(goldens.label, STREAMS))
@pytest.mark.parametrize("spill_bytes", [0, 1 << 24], ids=["spilled", "whole"])
def test_what_is_known_makes_no_change_however_it_comes_again(
    pair: tuple[goldens.Golden, goldens.Stream], spill_bytes: int
) -> None:
    """A position of before the log's end would become its end."""
    golden, stream = pair
    tables = tables_of(golden.keys)
    sizes = [len(frame) for frame in frames(stream.data)]
    together = max(1, len(sizes) // 100)  # of large streams a few frames at a time
    chunks = [sum(sizes[at : at + together]) for at in range(0, len(sizes), together)]
    ends = {parse_lsn(change.through) for change in decode(stream.data, tables, chunks) if _has_position(change)}
    for after in ends:
        changes = decode(stream.data, tables, chunks, spill_bytes=spill_bytes, after=after)
        named = {parse_lsn(change.through) for change in changes if _has_position(change)}
        assert named == {end for end in ends if end > after}


def test_a_transaction_larger_than_the_limit_leaves_in_pieces() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "large_but_not_streamed")
    changes = decode(stream.data, tables_of(golden.keys), repeat(3_000), spill_bytes=5_000)
    pieces = [change for change in changes if isinstance(change, Spilled)]
    assert len(pieces) > 5
    assert max(piece.events for piece in pieces) < 200
    assert len({piece.transaction for piece in pieces}) == 1


def test_a_transaction_with_more_rows_than_there_is_room_for_leaves_in_pieces() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "large_but_not_streamed")
    changes = decode(stream.data, tables_of(golden.keys), capacity=100)
    assert [c.events for c in changes if isinstance(c, Spilled)] == [99, 99, 99, 99, 99, 99, 6]


@cache
def _whole(label: str) -> list[Row]:
    """What the stream is when nothing cuts it."""
    [(golden, stream)] = [pair for pair in STREAMS if goldens.label(pair) == label]
    return rows(decode(stream.data, tables_of(golden.keys)))


def _same(pair: tuple[goldens.Golden, goldens.Stream], chunks: list[int], spill_bytes: int, capacity: int) -> None:
    golden, stream = pair
    changes = decode(stream.data, tables_of(golden.keys), chunks, spill_bytes=spill_bytes, capacity=capacity)
    assert _first_difference(rows(changes), _whole(goldens.label(pair))) is None
    assert goldens.has_barrier(changes) == golden.barrier
    for change in changes:
        if isinstance(change, Committed):
            events = [mark for mark, _ in change.marks]
            assert events == sorted(events)
            assert events[-1] == change.events == sum(block.rows for block in change.blocks)


def _first_difference(found: list[Row], wanted: list[Row]) -> tuple[Row, Row] | int | None:
    if found == wanted:
        return None
    return next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), len(found))


def _has_position(change: Change) -> TypeGuard[Committed | SpillCommitted]:
    return isinstance(change, Committed | SpillCommitted)
