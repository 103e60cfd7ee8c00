"""A source whose structure changes, and what destinations made of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from tests.sinks.state.support import Destination
from tests.support.capturing import capturing, eventually
from tests.support.changes import delivery
from tidemill.contracts import Source
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Receipt

names = itertools.count(1)

Rows = list[tuple[Any, ...]]


class Origin:
    """A source database. Each `do` is captured by a capture of its own, as after a restart, and ends in a row of the
    table `t` that tells where it ends."""

    def __init__(
        self, source: Callable[[], Source], run: Callable[[str], object], rows: Callable[[str], Rows], path: Path
    ) -> None:
        self._source, self._run, self.rows, self._path = source, run, rows, path
        self._delivered = 0

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._run(statement)

    def begin(self) -> None:
        """A binlog is captured from wherever it is when the capture connects."""
        with capturing(self._source(), self._path) as running:
            eventually(lambda: running.log.tail().position, running)

    def do(self, *statements: str, mark: str = ") VALUES ({})") -> None:
        with capturing(self._source(), self._path) as running:
            before = running.events
            self.run(*statements)
            number = 1000 + next(names)
            self._run(f"INSERT INTO t (id{', ' if mark[0] != ')' else ''}{mark.format(number)}")
            eventually(lambda: running.events > before and id_of(running.rows(last=1)[0]) == number, running)

    @contextmanager
    def connected(self) -> Iterator[Callable[[int], object]]:
        """One capture for all that is run meanwhile; gives a function that waits for a row with this id."""
        with capturing(self._source(), self._path) as running:
            yield lambda row: eventually(lambda: running.events and id_of(running.rows(last=1)[0]) == row, running)

    def blocks(self) -> list[Block]:
        """What was captured since the last time."""
        log = LogReader(str(self._path / "log"))
        start, self._delivered = self._delivered, log.tail().offset
        return [log.read(ref) for ref in log.refs(start, self._delivered)]


def id_of(row: dict[str, Any]) -> int:
    return int((row["after"] or {}).get("id", 0))


def write(there: Destination, *blocks: Block, **options: Any) -> list[Receipt]:
    """Each structure in a batch of its own, as the barrier does it; every batch by a new worker, and once more."""
    receipts = []
    for block in blocks:
        start = int(block.offsets()[0])
        receipts.append(there.sink(**options).write(delivery(block, start=start)))
        there.sink(**options).write(delivery(block, start=start))
    return receipts


def said(receipts: list[Receipt]) -> dict[str, list[str]]:
    """Of each table: what the last worker that looked at it says."""
    found: dict[str, list[str]] = {}
    for receipt in receipts:
        if receipt.notices:
            found |= {table: [n["what"] for n in each] for table, each in orjson.loads(receipt.notices).items()}
    return found


def same(origin: Origin, there: Destination, columns: str) -> bool:
    def texts(rows: Rows) -> list[list[str]]:
        return sorted([str(value) for value in row] for row in rows)

    assert texts(there.rows(columns)) == texts(origin.rows(columns))
    return True
