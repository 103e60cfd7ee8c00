"""The seam between loop one and a source: `changes`. A source may poll, and the loop does not know it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field

from tests.support.blocks import make_block, make_table
from tests.support.capturing import capturing, eventually
from tidemill.capture.lease import CaptureLease, pack_acceptance
from tidemill.contracts import (
    ByteStreamSource,
    Check,
    Component,
    Notice,
    Passage,
    Resting,
    Schemas,
    SourceConfig,
)
from tidemill.model.change import Change, Committed
from tidemill.model.position import Ordering, Position
from tidemill.model.table import Table


class OutboxConfig(SourceConfig):
    file: Path = Field(description="The database.")


class Outbox(Component[OutboxConfig]):
    """Rows of a table that another program fills, asked for again and again. What was delivered is deleted."""

    Config = OutboxConfig

    def __init__(self, config: OutboxConfig) -> None:
        super().__init__(config)
        self.began = Position("0")
        self.opened: list[Position | None] = []
        self._db: sqlite3.Connection | None = None
        self._table: Table = make_table()
        self._last = self._forgotten = self.asked = 0

    def open(
        self, after: Position | None, schemas: Schemas, *, confirmed: Position | None = None, mark_events: int = 1000
    ) -> None:
        self.opened.append(after)
        self._db = sqlite3.connect(self.config.file, isolation_level=None)
        self._last = int(after or 0)
        self._table = schemas.register(make_table(), after or self.began)

    def changes(self, wait: float) -> Iterator[Change]:
        deadline = time.monotonic() + wait
        while not (numbers := self._newer()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        positions = [str(number) for number in numbers]
        block = make_block(len(numbers), table=self._table, positions=positions, first_id=numbers[0])
        self._last = numbers[-1]
        yield Committed((block,), len(numbers), ((len(numbers), Position(positions[-1])),))

    def _newer(self) -> list[int]:
        assert self._db is not None
        rows = self._db.execute("SELECT id FROM outbox WHERE id > ? ORDER BY id LIMIT 2", [self._last])
        return [number for (number,) in rows]

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        self.asked += 1
        return delivered if delivered and int(delivered) > self._forgotten else None

    def acknowledge(self, position: Position) -> None:
        assert self._db is not None
        self._forgotten = int(position)
        self._db.execute("DELETE FROM outbox WHERE id <= ?", [self._forgotten])

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> None: ...

    def other_server(self, after: Position, schemas: Schemas) -> str:
        return ""

    def compare(self, a: Position, b: Position) -> Ordering | None:
        return None

    def renew(self, schemas: Schemas | None = None) -> Position:
        return self.began

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        return Passage(through or after, "nothing")

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        return ()

    def notices(self) -> tuple[Notice, ...]:
        return ()

    def lag_bytes(self) -> int | None:
        return None

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        return ()


def test_a_source_that_polls_is_captured_resumed_and_told_only_of_what_was_delivered(tmp_path: Path) -> None:
    config = OutboxConfig(id="outbox", file=tmp_path / "shop.sqlite")
    with sqlite3.connect(config.file, isolation_level=None) as shop:
        shop.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY)")

        def left() -> list[int]:
            return [number for (number,) in shop.execute("SELECT id FROM outbox ORDER BY id")]

        first = Outbox(config)
        with capturing(first, tmp_path) as running:
            shop.executemany("INSERT INTO outbox VALUES (?)", [(number,) for number in (1, 2, 3)])
            eventually(lambda: running.events == 3, running)
            assert left() == [1, 2, 3], "forgotten before it was delivered"
            running.deliver()
            eventually(lambda: left() == [], running)
            shop.execute("INSERT INTO outbox VALUES (4)")
            eventually(lambda: running.events == 4, running)
        assert first.opened == [None]

        shop.execute("INSERT INTO outbox VALUES (5)")
        second = Outbox(config)
        with capturing(second, tmp_path) as running:
            eventually(lambda: running.events == 5, running)
            rows = running.rows()
        assert second.opened == ["4"], "it did not go on where the log ends"
        assert [(row["position"], row["after"]["id"]) for row in rows] == [(str(n), n) for n in (1, 2, 3, 4, 5)]
        assert left() == [4, 5]
    shop.close()


def test_on_trial_nothing_is_captured_before_the_document_is_accepted(tmp_path: Path) -> None:
    """A server that is killed meanwhile has the document from before: it may capture tables that this one leaves out,
    and what came in between must still be to come for it."""
    config = OutboxConfig(id="outbox", file=tmp_path / "shop.sqlite")
    with sqlite3.connect(config.file, isolation_level=None) as shop:
        shop.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY)")
        shop.execute("INSERT INTO outbox VALUES (1), (2)")
        lease = CaptureLease(None, trial=True)
        reading, writing = os.pipe()
        stop = threading.Event()
        following = threading.Thread(target=lease.follow, args=(reading, stop))
        following.start()
        outbox = Outbox(config)
        with capturing(outbox, tmp_path, accepted=lease.accepted) as running:
            eventually(lambda: outbox.asked >= 5, running)
            tail = running.log.tail()
            assert (outbox.opened, tail.offset, tail.position) == ([None], 0, "")
            os.write(writing, pack_acceptance())
            eventually(lambda: running.events == 2, running)
        os.close(writing)
        following.join(10)
        assert stop.is_set()
        os.close(reading)
    shop.close()


class Lines:
    """Each line is a position."""

    consumed = sent_at = 0

    def feed(self, data: memoryview) -> Iterator[Change]:
        *lines, rest = bytes(data).split(b"\n")
        for line in lines:
            yield Committed((), 0, ((0, Position(line.decode())),))
        self.consumed = len(data) - len(rest)


class Pipe(ByteStreamSource[SourceConfig, Lines]):
    def __init__(self, *chunks: bytes) -> None:
        super().__init__(SourceConfig(id="pipe"))
        self._chunks, self._kept = list(chunks), b""
        self._decoder = Lines()

    def read(self, wait: float = 0.2) -> memoryview:
        self._kept += self._chunks.pop(0)
        return memoryview(self._kept)

    def consumed(self, count: int) -> None:
        self._kept = self._kept[count:]


def test_bytes_that_a_read_cut_are_decoded_with_the_next_one() -> None:
    source = Pipe(b"1\n2\n3", b"", b"3\n")
    rounds = [[c.through for c in source.changes(0) if isinstance(c, Committed)] for _ in range(3)]
    assert rounds == [["1", "2"], [], ["33"]]
