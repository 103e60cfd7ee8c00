"""Blocks of one table never overlap in offsets: checked at each append, mended where an old log has such blocks."""

from __future__ import annotations

import pytest

from tests.log.conftest import OpenStore
from tests.log.look import offsets
from tests.support.blocks import make_block, make_change, make_table, position
from tidemill.errors import BadAppend, is_retryable
from tidemill.log import LogConfig, LogReader
from tidemill.log import order as rules
from tidemill.log.writer import LogWriter
from tidemill.model.block import Block
from tidemill.model.change import Committed, SpillCommitted, Spilled

CONFIG = LogConfig.model_validate({"fsync": False})
ONE, TWO = make_table(version=1), make_table(version=2)


def toggled(*runs: tuple[int, int], spilled: bool = False) -> tuple[Block, ...]:
    """A block per version of one table; `runs` are (version, rows), one behind the other."""
    owner = [version for version, rows in runs for _ in range(rows)]
    blocks = []
    for table in (ONE, TWO):
        own = [at for at, version in enumerate(owner) if version == table.version]
        positions, subtx = (None, [0] * len(own)) if spilled else ("0/100", None)
        blocks.append(make_block(len(own), table=table, offsets=own, ordinals=own, positions=positions, subtx=subtx))
    return tuple(blocks)


def test_an_append_with_overlapping_blocks_of_one_table_is_refused_and_leaves_the_log_as_it_was(
    place: OpenStore,
) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(make_change(2))
    with pytest.raises(BadAppend, match=r"two blocks of public\.orders overlap") as refused:
        writer.append(Committed(toggled((1, 2), (2, 1), (1, 1)), 4, ((4, position(2)),)))
    assert not is_retryable(refused.value)
    assert offsets(LogReader(place())) == [0, 1]
    writer.append(make_change(1, number=2))
    assert offsets(LogReader(place())) == [0, 1, 2]


def test_a_spilled_transaction_with_overlapping_blocks_of_one_table_is_refused_at_its_commit(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.spill(Spilled(7, toggled((1, 1), (2, 1), (1, 1), spilled=True), 3))
    with pytest.raises(BadAppend, match="overlap"):
        writer.commit_spill(SpillCommitted(7, position(1), 7, 0, position(1)))
    assert LogReader(place()).tail().offset == 0


def test_blocks_of_one_table_that_follow_each_other_are_taken(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(Committed(toggled((1, 2), (2, 3)), 5, ((5, position(1)),)))
    assert offsets(LogReader(place())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("runs", [((1, 1), (2, 1), (1, 1)), ((2, 2), (1, 3), (2, 1), (1, 2), (2, 2))])
def test_a_log_that_was_written_with_overlapping_blocks_is_read_in_order(
    place: OpenStore, runs: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.open(place(), CONFIG)
    total = sum(rows for _, rows in runs)
    with monkeypatch.context() as patch:
        patch.setattr(rules, "check", lambda refs, where: None)  # as the log was before there was a check
        writer.append(make_change(2))
        writer.append(Committed(toggled(*runs), total, ((total, position(2)),)))
    writer.append(make_change(2, number=3))
    log = LogReader(place())
    for start, end in ((0, total + 4), (2, total + 2), (3, total + 1)):
        met = [int(offset) for ref in log.refs(start, end) for offset in log.read(ref).offsets()]
        assert met == list(range(start, end))
