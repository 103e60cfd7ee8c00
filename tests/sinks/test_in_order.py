"""Groups of block slices in the order of offsets, whatever way the tables of a transaction interleave."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.blocks import make_block, make_table
from tests.support.seed import run_seed
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks._shared import in_order


def delivery_of(blocks: list[Block], end: int) -> Delivery:
    return Delivery("shop", "s", 0, end, 0, 1, lambda: iter(blocks))


def test_every_event_comes_once_and_no_group_is_older_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random appends over three tables, some rows filtered out, blocks sorted by where they began before that."""
    monkeypatch.setattr(in_order, "WINDOW", 40)
    seed = run_seed()
    chance = random.Random(seed)
    for case in range(60):
        blocks: list[tuple[int, Block]] = []
        start = 0
        for _ in range(chance.randrange(1, 20)):
            end = start + chance.randrange(1, 60)
            deal = np.array([chance.randrange(3) for _ in range(start, end)])
            for number in range(3):
                mine = (np.flatnonzero(deal == number) + start).tolist()
                kept = [o for o in mine if chance.random() < 0.7]
                if kept:
                    block = make_block(len(kept), table=make_table(f"t{number}"), offsets=kept)
                    blocks.append((mine[0], block))
            start = end
        blocks.sort(key=lambda pair: pair[0])
        groups = list(in_order.groups(delivery_of([b for _, b in blocks], start)))
        offsets = [np.sort(np.concatenate([b.offsets() for b in group])).tolist() for group in groups]
        expected = sorted(o for _, b in blocks for o in b.offsets().tolist())
        assert [o for group in offsets for o in group] == expected, f"seed {seed}, case {case}"
        assert all(len(group) <= 80 for group in offsets)


def test_blocks_of_the_wrong_order_are_refused_and_not_sent_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_order, "WINDOW", 2)
    blocks = [make_block(3, offsets=range(first, first + 3)) for first in (10, 20, 30, 12)]
    with pytest.raises(Refused, match="begins at offset 12"):
        list(in_order.groups(delivery_of(blocks, 40)))


def test_groups_of_large_events_have_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [make_block(3, offsets=range(first, first + 3)) for first in range(0, 60, 3)]
    (together,) = in_order.groups(delivery_of(blocks, 60))
    assert len(together) == 20
    monkeypatch.setattr(in_order, "_MOST_BYTES", 4 * blocks[0].batch.nbytes)
    groups = list(in_order.groups(delivery_of(blocks, 60)))
    assert [len(group) for group in groups] == [4] * 5
    assert [int(b.offsets()[0]) for group in groups for b in group] == list(range(0, 60, 3))
