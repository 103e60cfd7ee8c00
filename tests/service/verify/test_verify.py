"""What `verify` says when more rows differ than it looks at again. Stand-ins for the two sides: no server lags on
demand by so many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block
from tidemill.contracts import RowDifference, RowFault
from tidemill.model.block import Block
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotTable
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
