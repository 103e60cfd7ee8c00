"""What `verify` says when more rows differ than it looks at again. Stand-ins for the two sides: no server lags on
demand by so many rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block
from tests.support.changes import changes, column, structure
from tidemill.contracts import RowDifference, RowFault
from tidemill.model.block import Block, Op
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotTable
from tidemill.model.table import Table
from tidemill.service.verify.audit import VerifyOptions, _Verification
from tidemill.service.verify.row_comparison import RowComparison
from tidemill.service.verify.verdicts import TableVerdict

ROWS = 1500
WHOLE = make_block(ROWS)


class StandInReader:
    def plan(self, *_: Any) -> None:
        return None

    @contextmanager
    def read(self, chunk: Chunk, *_: Any) -> Iterator[Any]:
        ids = [int(point[0]) for point in chunk.points] or list(range(ROWS))
        block = Block(WHOLE.table, WHOLE.batch.take(pa.array(ids)))
        yield SimpleNamespace(high=Position("0/10"), blocks=lambda: iter([block]))


class LaggingAudit:
    """Has nothing at the first look of a comparison, if `lags`, and later everything but the row 1400."""

    left_out = ()

    def __init__(self, *, lags: bool) -> None:
        self._lags = lags

    def compare(self, block: Block, *, note: bool) -> list[Any]:
        ids = (block.struct("after") or {})["id"].to_pylist()
        gone = set(ids) if note and self._lags else {1400}
        return [RowDifference(n, RowFault.MISSING) for n, key in enumerate(ids) if key in gone]

    def extra(self, _most: int) -> list[Any]:
        return []

    def has(self, _key: Any) -> bool:
        return False

    def close(self) -> None:
        return


def verdict_of(lags: Sequence[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TableVerdict:
    looks = iter(lags)
    chain: Any = SimpleNamespace(structure=lambda table: table, rows=lambda block: block)
    target: Any = SimpleNamespace(audit=lambda *_, **__: LaggingAudit(lags=next(looks)))
    pipeline: Any = SimpleNamespace(source_id="shop", build_source=lambda: None, log_uri=str(tmp_path))
    reader: Any = StandInReader()
    work = _Verification(pipeline, "s", reader, target, chain, VerifyOptions(wait_seconds=5.0))
    monkeypatch.setattr(RowComparison, "_has_passed", lambda *_: True)
    return work.run(SnapshotTable(WHOLE.table, WHOLE.table.key, ROWS, Position("0/1"), ("",), ""))


def test_a_table_is_not_called_equal_while_more_rows_differ_than_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict = verdict_of([True, True, True], monkeypatch, tmp_path)
    assert (verdict.is_equal, verdict.error) == (
        False,
        "not known: more rows differed at the first look than are looked at again",
    )


def test_it_is_compared_again_and_what_differs_for_good_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict = verdict_of([True, False], monkeypatch, tmp_path)
    assert [key.key for key in verdict.keys] == [("1400",)]
    assert not verdict.is_equal


class EditedReader:
    """A row whose long columns are changed at their ends between any two looks."""

    def __init__(self, table: Table) -> None:
        self._table, self._looks = table, itertools.count()

    def plan(self, *_: Any) -> None:
        return None

    @contextmanager
    def read(self, *_: Any) -> Iterator[Any]:
        look = next(self._looks)
        tail = {"id": 7, "text": "x" * 200 + str(look), "items": [*range(20), look, *range(20)]}
        row = {name: tail[name] for name in (c.name for c in self._table.columns)}
        block = changes(self._table, (Op.READ, None, row))
        yield SimpleNamespace(high=Position("0/10"), blocks=lambda: iter([block]))


class DifferingAudit(LaggingAudit):
    def compare(self, block: Block, *, note: bool) -> list[Any]:
        return [RowDifference(0, RowFault.DIFFERENT, ("note",))]


@pytest.mark.parametrize("long", ["text", "items"])
def test_a_row_that_changes_with_every_look_is_no_difference_however_long_it_is(
    long: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the beginning of long values was compared: the row was taken for one that had not changed since."""
    kind = pa.string() if long == "text" else pa.list_(pa.int64())
    table = structure("t", column("id", "bigint", pa.int64(), nullable=False), column(long, "", kind))
    pipeline: Any = SimpleNamespace(build_source=lambda: None, log_uri=str(tmp_path))
    chain: Any = SimpleNamespace(rows=lambda block: block)
    reader: Any = EditedReader(table)
    audit: Any = DifferingAudit(lags=False)
    monkeypatch.setattr(RowComparison, "_has_passed", lambda *_: True)
    found = SnapshotTable(table, table.key, 1, Position("0/1"), ("",), "")
    verdict = RowComparison(pipeline, "s", reader, audit, chain, found, wait_seconds=1.2).run()
    assert (verdict.keys, verdict.moving) == ((), 1)


class ChangingTable:
    """One row of both sides. The sink lags at first. At a later look the row is deleted, or inserted again, after the
    source was looked at, and the sink has that before it is looked at."""

    left_out = ()

    def __init__(self, change: str) -> None:
        self._deletes = change == "deleted"
        self._is_there, self._looks = self._deletes, 0
        self._table = structure("t", column("id", "bigint", pa.int64(), nullable=False))
        self.found = SnapshotTable(self._table, self._table.key, 1, Position("0/1"), ("",), "")

    def plan(self, *_: Any) -> None:
        return None

    @contextmanager
    def read(self, *_: Any) -> Iterator[Any]:
        self._looks += 1
        blocks = [changes(self._table, (Op.READ, None, {"id": 7}))] if self._is_there else []
        yield SimpleNamespace(high=Position("0/10"), blocks=lambda: iter(blocks))

    def _changes_now(self) -> bool:
        """An extra row is looked at in the source for the first time at the second look."""
        if self._looks == (2 if self._deletes else 3):
            self._is_there = not self._deletes
            return True
        return False

    def compare(self, block: Block, *, note: bool) -> list[Any]:
        return [RowDifference(0, RowFault.MISSING)] if note or self._changes_now() else []

    def extra(self, _most: int) -> list[Any]:
        return [] if self._deletes else [("7",)]

    def has(self, _key: Any) -> bool:
        return not self._deletes and (self._changes_now() or not self._is_there)


@pytest.mark.parametrize("change", ["deleted", "inserted"])
def test_a_change_that_reaches_the_sink_between_the_looks_at_both_sides_is_no_difference(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In real time it takes milliseconds; 200 large rows take longer to be read."""
    both: Any = ChangingTable(change)
    pipeline: Any = SimpleNamespace(build_source=lambda: None, log_uri=str(tmp_path))
    chain: Any = SimpleNamespace(rows=lambda block: block)
    monkeypatch.setattr(RowComparison, "_has_passed", lambda *_: True)
    verdict = RowComparison(pipeline, "s", both, both, chain, both.found, wait_seconds=30.0).run()
    assert (verdict.keys, verdict.moving) == ((), 0)
