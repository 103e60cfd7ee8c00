"""What a server sends once and never again must not be what the next connection waits for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.sources.postgres.histories import TABLE, capture, has, ids, insert, refused, server_with_table
from tests.sources.support import config, end_session, execute, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.errors import PositionLost
from tidemill.log import LogConfig, LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresConfig, PostgresSource, witness
from tidemill.sources.postgres.lsn import format_lsn

LARGE = "SELECT n, repeat('x', 200) FROM generate_series(1000, 2999) n"


class Counted(PostgresSource):
    """Counts the turns of the loop in which the server could be told something."""

    turns = 0

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        confirmed = super().due(delivered, caught_up=caught_up)
        self.turns += 1
        return confirmed

    def has_passed(self, run: Running) -> None:
        """Waits until all that was committed by now was seen, noted, and confirmed as far as it may be."""
        (end,) = query(self.config.dsn, "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")[0]
        eventually(lambda: self._reached >= end, run)
        turns = self.turns
        eventually(lambda: self.turns > turns + 5, run)


class FrameByFrame(PostgresSource):
    """Every frame of the stream arrives in a read of its own."""

    shown = 0

    def read(self, wait: float = 0.02) -> memoryview:
        view = super().read(wait)
        if len(view) >= self.shown + 5:
            self.shown = min(len(view), self.shown + 1 + struct.unpack_from(">I", view, self.shown + 1)[0])
        return view[: self.shown]

    def consumed(self, count: int) -> None:
        self.shown -= count
        super().consumed(count)


def of_another_table(dsn: str) -> int:
    with psycopg.connect(dsn) as db:
        db.execute(f"INSERT INTO other {LARGE}")
        return xid(db)


def undone(dsn: str) -> int:
    """Rows of ours, which are streamed before they are taken back."""
    with psycopg.connect(dsn) as db:
        db.execute("SAVEPOINT a")
        db.execute(f"INSERT INTO t {LARGE}")
        db.execute("SAVEPOINT b")
        db.execute("INSERT INTO t VALUES (-1)")
        db.execute("ROLLBACK TO a")
        return xid(db)


def xid(db: psycopg.Connection[Any]) -> int:
    row = db.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row
    return int(row[0])


@pytest.fixture
def settings(database: str) -> PostgresConfig:
    """Large is 64 kB here. No message of ours comes after a transaction."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, TABLE, "CREATE TABLE other (id int, v text)",
            f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")  # fmt: skip
    return config(database, "t", feedback_seconds=0.01, heartbeat_seconds=0)


@pytest.fixture
def remembered(tmp_path: Path) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry(tmp_path / "registry.sqlite")
    yield registry
    registry.close()


def killed(kept: bytes | None) -> bytes:
    """What a process leaves that had no time to say that it ended in order."""
    return (kept or b"").replace(b'"closed":true', b'"closed":false')


@pytest.mark.parametrize("large", [of_another_table, undone])
@pytest.mark.parametrize("way", ["cut", "stopped", "killed", "killed before it noted"])
def test_a_large_transaction_without_a_row_of_ours_is_not_waited_for(
    settings: PostgresConfig, tmp_path: Path, remembered: SchemaRegistry, large: Callable[[str], int], way: str
) -> None:
    source = Counted(settings)
    with capturing(source, tmp_path) as run:
        insert(settings.dsn, 0, 1)
        eventually(lambda: run.events == 1, run)
        run.deliver()
        eventually(lambda: (kept := witness.recall(remembered.recall)) and kept.last, run)
        before = remembered.recall(witness.NAME)
        large(settings.dsn)
        source.has_passed(run)
        if way == "cut":
            end_session(settings.dsn, settings)
            eventually(lambda: run.last_error, run)
            insert(settings.dsn, 1, 2)
            eventually(lambda: run.events == 2, run)
            assert ids(run) == [0, 1]
            return
    if way != "stopped":
        kept = before if way == "killed before it noted" else remembered.recall(witness.NAME)
        remembered.remember(witness.NAME, killed(kept))
    insert(settings.dsn, 1, 2)
    assert capture(settings, tmp_path, 2) == [0, 1]


def test_a_large_transaction_without_a_row_of_ours_is_not_waited_for_after_a_restart_of_the_server(
    tmp_path: Path,
) -> None:
    with server_with_table() as (server, known):
        settings = known.model_copy(update={"heartbeat_seconds": 0, "feedback_seconds": 0.01})
        execute(settings.dsn, "CREATE TABLE other (id int, v text)",
                "ALTER DATABASE src SET logical_decoding_work_mem = '64kB'")  # fmt: skip
        source = Counted(settings)
        with capturing(source, tmp_path) as run:
            insert(settings.dsn, 0, 1)
            eventually(lambda: run.events == 1, run)
            for count, stop in ((2, server.stop), (3, server.kill)):
                run.deliver()
                of_another_table(settings.dsn)
                source.has_passed(run)
                stop()
                server.start()
                insert(settings.dsn, count - 1, count)
                eventually(partial(has, run, count), run)
            assert ids(run) == [0, 1, 2]


def test_a_transaction_of_which_a_row_is_left_is_waited_for(
    settings: PostgresConfig, tmp_path: Path, remembered: SchemaRegistry
) -> None:
    with capturing(PostgresSource(settings), tmp_path) as run:
        with psycopg.connect(settings.dsn) as db:
            db.execute("SAVEPOINT a")
            db.execute(f"INSERT INTO t {LARGE}")
            db.execute("ROLLBACK TO a")
            db.execute("INSERT INTO t VALUES (0)")
            number = xid(db)
        eventually(lambda: run.events == 1, run)
    kept = witness.recall(remembered.recall)
    assert kept is not None
    assert kept.last is not None
    assert kept.last.xid == number
    insert(settings.dsn, 1, 2)
    assert capture(settings, tmp_path, 2) == [0, 1]


def test_a_position_that_is_lost_stays_lost_however_often_it_is_tried(
    settings: PostgresConfig, tmp_path: Path, remembered: SchemaRegistry
) -> None:
    """What comes again to be compared has positions of before the log's end, which must not become its end."""
    PostgresSource(settings).setup()
    insert(settings.dsn, 0, 1)
    capture(settings, tmp_path, 1)
    early = killed(remembered.recall(witness.NAME))
    insert(settings.dsn, 1, 4)
    capture(settings, tmp_path, 4)
    remembered.remember(witness.NAME, early)
    execute(settings.dsn, "INSERT INTO other VALUES (1)")
    end = ends_at(tmp_path, query(settings.dsn, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    for _ in range(3):
        with capturing(FrameByFrame(settings), tmp_path) as run:
            (error,) = eventually(lambda: run.failure)
        assert isinstance(error, PositionLost)
        assert "no transaction of it ends at our last position" in error.what
        assert LogReader(str(tmp_path / "log")).tail() == end


def ends_at(directory: Path, lsn: int) -> Any:
    log = LogWriter.open(str(directory / "log"), LogConfig.model_validate({"fsync": False}))
    log.append(Committed((), 0, ((0, format_lsn(int(lsn))),)))
    tail = log.tail
    log.close()
    return tail


def test_a_position_that_an_operator_chose_need_not_be_the_end_of_a_transaction(
    settings: PostgresConfig, tmp_path: Path, remembered: SchemaRegistry
) -> None:
    PostgresSource(settings).setup()
    insert(settings.dsn, 0, 1)
    capture(settings, tmp_path, 1)
    insert(settings.dsn, 1, 2)
    execute(settings.dsn, "INSERT INTO other VALUES (1)")
    (chosen,) = query(settings.dsn, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0]
    insert(settings.dsn, 2, 3)
    remembered.remember(witness.NAME, killed(remembered.recall(witness.NAME)))
    at = LogReader(str(tmp_path / "log")).tail().position
    PostgresSource(settings).pass_over(at, format_lsn(int(chosen)), remembered, confirmed=None)
    ends_at(tmp_path, chosen)
    kept = remembered.recall(witness.NAME)
    assert capture(settings, tmp_path, 2) == [0, 2]
    # Killed before anything was logged or noted.
    remembered.remember(witness.NAME, kept)
    ends_at(tmp_path, chosen)
    assert capture(settings, tmp_path, 3) == [0, 2, 2]
    # The log has grown past it: its end is a transaction's again, and no other position is taken for one.
    remembered.remember(witness.NAME, kept)
    execute(settings.dsn, "INSERT INTO other VALUES (2)")
    ends_at(tmp_path, query(settings.dsn, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    refused(settings, tmp_path)


def test_a_position_that_an_operator_only_asked_about_changes_nothing(
    settings: PostgresConfig, tmp_path: Path, remembered: SchemaRegistry
) -> None:
    PostgresSource(settings).setup()
    insert(settings.dsn, 0, 1)
    capture(settings, tmp_path, 1)
    insert(settings.dsn, 1, 2)
    (chosen,) = query(settings.dsn, "SELECT pg_current_wal_lsn()::text")[0]
    at = LogReader(str(tmp_path / "log")).tail().position
    PostgresSource(settings).pass_over(at, chosen, remembered, confirmed=None)
    assert capture(settings, tmp_path, 2) == [0, 1]


def test_what_the_slot_is_already_past_is_not_confirmed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted as confirmed it would take back what the state store knows: the next start would find a lost position."""
    source = PostgresSource(config("postgresql://nobody@127.0.0.1/nowhere", "t", feedback_seconds=1e-9))
    decoder = SimpleNamespace(wal_end=0x300, idle=False, reply_requested=lambda: False)
    monkeypatch.setattr(PostgresSource, "decoder", decoder)
    monkeypatch.setattr(source, "_watch", SimpleNamespace(check=lambda: None))
    monkeypatch.setattr(source, "_report_if_due", lambda: None)
    source._confirmed = 0x200  # the slot's, when the source connected
    assert source.due(format_lsn(0x100), caught_up=False) is None
    assert source.due(format_lsn(0x200), caught_up=False) is None
    assert source.due(format_lsn(0x201), caught_up=False) == format_lsn(0x201)
    decoder.idle = True
    assert source.due(format_lsn(0x100), caught_up=True) == format_lsn(0x300)
