"""The stream of a real server: where it begins, what is acknowledged, and how it ends."""

from __future__ import annotations

import math
import re
import struct
import threading
import time

import psycopg
import pytest

from tests.delivery.proxy import Proxy
from tests.sources.support import (
    commit_end,
    config,
    end_session,
    execute,
    messages,
    opened,
    pump,
    pump_until_lost,
    query,
)
from tidemill.errors import ConnectionLost, PositionLost, SetupError, SourceError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.sources.postgres import PostgresSource, client, errors
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def confirmed(dsn: str, source: PostgresSource) -> int:
    rows = query(
        dsn,
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{source.config.slot_name}'",
    )
    return parse_lsn(rows[0][0])


def confirm(dsn: str, source: PostgresSource, lsn: int) -> None:
    """Turns the loop until the server has the acknowledgement."""
    deadline = time.monotonic() + 120
    while confirmed(dsn, source) < lsn:
        assert time.monotonic() < deadline
        pump(source)


def test_changes_arrive_and_only_what_is_acknowledged_is_forgotten(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t", feedback_seconds=0.1)) as source:
        begin = source.setup().position
        assert source.start(None) == begin
        execute(database, "INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
        first, second = (commit_end(m) for m in messages(source, "C", 2))
        for _ in range(5):
            pump(source)
        assert confirmed(database, source) == parse_lsn(begin)
        source.acknowledge(format_lsn(first))
        confirm(database, source, first)
        assert confirmed(database, source) == first
        source.start(format_lsn(first), format_lsn(first))
        assert commit_end(messages(source, "C", 1)[0]) == second


def test_a_restart_after_a_position_gives_what_follows_it_and_no_more(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        execute(database, *(f"INSERT INTO t VALUES ({n}, 'x')" for n in range(5)))
        ends = [commit_end(m) for m in messages(source, "C", 5)]
        for number, end in enumerate(ends[:-1]):
            source.start(format_lsn(end))
            assert [commit_end(m) for m in messages(source, "C", 4 - number)] == ends[number + 1 :]


def test_an_acknowledgement_never_goes_back(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t", feedback_seconds=0.05)) as source:
        source.setup()
        source.start(None)
        execute(database, "INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')")
        first, second = (commit_end(m) for m in messages(source, "C", 2))
        source.acknowledge(format_lsn(second))
        confirm(database, source, second)
        source.acknowledge(format_lsn(first))
        for _ in range(5):
            pump(source)
        source.start(format_lsn(second), format_lsn(second))
        source.acknowledge(format_lsn(first))
        for _ in range(5):
            pump(source)
        assert confirmed(database, source) == second


def test_a_slot_that_someone_else_read_is_a_lost_position(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t")) as source:
        begin = source.setup().position
        execute(database, "INSERT INTO t VALUES (1, 'a')")
        execute(
            database, f"SELECT pg_replication_slot_advance('{source.config.slot_name}', pg_current_wal_insert_lsn())"
        )
        with pytest.raises(PositionLost, match="someone else") as caught:
            source.start(begin)
        assert "recover" in caught.value.fix
        # What we acknowledged ourselves is no loss: an idle source is acknowledged past its last change.
        source.start(begin, format_lsn(confirmed(database, source)))


def test_latest_skips_what_the_slot_kept_and_earliest_does_not(database: str) -> None:
    execute(database, TABLE)
    for start, expected in (("earliest", [b"1", b"2"]), ("latest", [b"2"])):
        with opened(config(database, "t", start_position=start)) as source:
            source.setup()
            execute(database, "TRUNCATE t", "INSERT INTO t VALUES (1, 'a')")
            source.start(None)
            execute(database, "INSERT INTO t VALUES (2, 'b')")
            rows = messages(source, "I", len(expected))
            assert [row[13:14] for row in rows] == expected
        execute(database, f"SELECT pg_drop_replication_slot('{source.config.slot_name}')")


def test_a_start_position_outside_what_the_slot_has_is_refused(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t", start_position="0/1")) as source:
        source.setup()
        with pytest.raises(SetupError, match="earliest"):
            source.start(None)


def test_a_slot_in_use_by_another_program_is_an_error_that_names_it(database: str) -> None:
    execute(database, TABLE)
    settings = config(database, "t")
    with opened(settings) as source, opened(config(database, "t", id="x", slot=settings.slot_name)) as other:
        other.setup()
        other.start(None)
        with pytest.raises(errors.SlotInUse, match='"tidemill_x"'):
            source.setup()
        with pytest.raises(errors.SlotInUse, match="pg_terminate_backend") as caught:
            source.start(None)
        assert not is_retryable(caught.value)


def test_a_slot_that_a_fenced_predecessor_still_holds_is_taken_at_once(database: str) -> None:
    """Its host is cut off: the server would wait for wal_sender_timeout."""
    execute(database, TABLE)
    settings = config(database, "t", slot_wait_seconds=30)
    with opened(settings) as before, opened(settings) as source, opened(settings) as waiting:
        source.setup()
        before.start(None)
        source.takes_over = True
        source.start(None)
        waiting.config = settings.model_copy(update={"slot_wait_seconds": 0.3})
        with pytest.raises(errors.SlotInUse):
            waiting.start(None)  # who was not told that it takes over ends nobody


def test_a_slot_of_another_program_is_not_taken_over_either(database: str) -> None:
    execute(database, TABLE)
    settings = config(database, "t")
    with opened(settings) as source, opened(config(database, "t", id="x", slot=settings.slot_name)) as other:
        other.setup()
        other.start(None)
        source.takes_over = True
        with pytest.raises(errors.SlotInUse, match='"tidemill_x"'):
            source.start(None)


def test_a_slot_that_our_own_last_connection_still_holds_is_waited_for(database: str) -> None:
    execute(database, TABLE)
    settings = config(database, "t", slot_wait_seconds=0.3)
    with opened(settings) as before, opened(settings) as source:
        source.setup()
        before.start(None)
        with pytest.raises(errors.SlotInUse):
            source.start(None)
        patient = PostgresSource(settings.model_copy(update={"slot_wait_seconds": 10}))
        end_session(database, settings)
        patient.start(None)
        patient.close()


def test_a_session_that_the_server_ends_is_a_lost_connection_that_can_be_made_again(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        end_session(database, source.config)
        with pytest.raises(ConnectionLost) as caught:
            pump_until_lost(source)
        assert is_retryable(caught.value)
        source.start(None)
        execute(database, "INSERT INTO t VALUES (1, 'a')")
        assert len(messages(source, "I", 1)) == 1


def test_a_server_that_is_killed_is_a_lost_connection_and_streams_again_after_its_return(
    private_postgres: Postgres,
) -> None:
    dsn = private_postgres.dsn()
    execute(dsn, TABLE)
    with opened(config(dsn, "t")) as source:
        source.setup()
        source.start(None)
        execute(dsn, "INSERT INTO t VALUES (1, 'a')")
        end = commit_end(messages(source, "C", 1)[0])
        private_postgres.kill()
        with pytest.raises(ConnectionLost):
            pump_until_lost(source)
        with pytest.raises(ConnectionLost):
            source.start(format_lsn(end))
        private_postgres.start()
        source.start(format_lsn(end))
        execute(dsn, "INSERT INTO t VALUES (2, 'b')")
        assert messages(source, "I", 1)[0][13:14] == b"2"


def test_a_server_that_stops_answering_is_a_lost_connection_and_streams_again_when_it_is_back(
    private_postgres: Postgres,
) -> None:
    dsn = private_postgres.dsn()
    execute(dsn, TABLE)
    with Proxy(private_postgres.port) as proxy:
        through = dsn.replace(f":{private_postgres.port}/", f":{proxy.port}/")
        short = {"heartbeat_seconds": 0.3, "feedback_seconds": 0.1, "network_timeout_seconds": 1}
        with opened(config(through, "t", **short, connect_timeout_seconds=2)) as source:
            source.setup()
            begin = source.start(None)
            for _ in range(20):  # a server that is only idle answers, and is not given up
                pump(source)
            proxy.hold()
            with pytest.raises(ConnectionLost, match="has sent nothing"):
                pump_until_lost(source)
            with pytest.raises(ConnectionLost, match="cannot be reached"):
                source.start(begin)
            proxy.release()
            source.start(begin)
            execute(dsn, "INSERT INTO t VALUES (1, 'a')")
            assert messages(source, "C", 1)


class Busy:
    """A stream whose server decodes what we do not want, and says nothing."""

    quiet = math.inf

    def read(self, wait: float) -> memoryview:
        return memoryview(b"")

    def status(self, written: int, flushed: int, *, reply: bool) -> None:
        pass


def test_a_server_that_is_only_busy_is_waited_for_longer_each_time_until_there_is_progress() -> None:
    source = PostgresSource(config("dbname=x", heartbeat_seconds=10, network_timeout_seconds=30))

    def waited() -> int:
        source._flushed, source._stream = 0, Busy()  # type: ignore[assignment]  # a new connection
        source.acknowledge(Position("0/10"))  # known before: no progress
        with pytest.raises(ConnectionLost) as lost:
            source.read()
        return int(re.findall(r"for (\d+) seconds", str(lost.value))[0])

    assert [waited() for _ in range(9)] == [40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    source.acknowledge(Position("0/20"))
    assert waited() == 40


def test_a_query_that_is_never_answered_is_a_lost_connection(
    private_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the catalog's and the setup's: the server keeps their timeouts, if it keeps anything."""
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 1.0)
    dsn = private_postgres.dsn()
    short = {"network_timeout_seconds": 1, "lock_timeout_seconds": 1, "setup_timeout_seconds": 1}
    with Proxy(private_postgres.port) as proxy:
        settings = config(dsn.replace(f":{private_postgres.port}/", f":{proxy.port}/"), "t", **short)
        with client.connect(settings) as db:
            proxy.hold()
            met: list[Exception] = []
            asking = threading.Thread(target=_asks_in_vain, args=(db, met), daemon=True)
            asking.start()
            asking.join(60)
            assert not asking.is_alive(), "it waits for ever"
            assert is_retryable(met[0])


def _asks_in_vain(db: psycopg.Connection, met: list[Exception]) -> None:
    try:
        with errors.translate("here"):
            db.execute("SELECT 1")
    except Exception as error:  # noqa: BLE001  looked at by the test
        met.append(error)


def test_the_server_can_be_stopped_while_nothing_is_acknowledged(private_postgres: Postgres) -> None:
    dsn = private_postgres.dsn()
    execute(dsn, TABLE)
    with opened(config(dsn, "t")) as source:
        source.setup()
        source.start(None)
        execute(dsn, "INSERT INTO t VALUES (1, 'a')")
        messages(source, "C", 1)
        process = private_postgres._process
        assert process is not None
        process.send_signal(2)
        with pytest.raises(ConnectionLost):
            pump_until_lost(source)
        process.wait(120)
        private_postgres.start()
        source.start(None)
        assert len(messages(source, "I", 1)) == 1


def test_an_idle_slot_can_follow_what_other_databases_write(postgres: Postgres, database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t", feedback_seconds=0.1, heartbeat_seconds=0.2)) as source:
        begin = parse_lsn(source.setup().position)
        source.start(None)
        with postgres.connect() as db:
            db.execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', 100000))")
            db.execute("SELECT txid_current()")
        deadline = time.monotonic() + 120
        while source._wal_end < begin + 100_000:
            assert time.monotonic() < deadline
            pump(source)
        source.acknowledge(format_lsn(source._wal_end))
        confirm(database, source, begin + 100_000)


def test_a_slot_whose_wal_was_removed_is_a_lost_position() -> None:
    with Postgres(durable=False, max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as server:
        dsn = server.dsn()
        execute(dsn, TABLE)
        with opened(config(dsn, "t")) as source:
            begin = source.setup().position
            with psycopg.connect(dsn, autocommit=True) as db:
                for _ in range(8):
                    db.execute(
                        "SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000000)) FROM generate_series(1, 8)"
                    )
                    db.execute("SELECT pg_switch_wal()")
                    db.execute("CHECKPOINT")
            with pytest.raises(errors.SlotLost, match="was invalidated"):
                source.setup(after=begin)
            with pytest.raises(errors.SlotLost, match="max_slot_wal_keep_size") as caught:
                source.start(begin)
            assert not is_retryable(caught.value)
            outcomes = {check.name: check.outcome for check in source.doctor()}
            assert outcomes["slot"] == "fail"
            assert outcomes["max_slot_wal_keep_size"] == "warn"


def test_a_row_larger_than_the_buffer_passes_and_the_buffer_shrinks_again(database: str) -> None:
    execute(database, TABLE)
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        size = 70 << 20
        execute(database, f"INSERT INTO t VALUES (1, repeat('x', {size}))", "INSERT INTO t VALUES (2, 'b')")
        large = messages(source, "I", 1, 60)[0]
        assert len(large) > size
        assert source._stream is not None
        for _ in range(3):
            pump(source)
        assert len(source._stream._buffered._buffer) == 64 << 20


def test_settings_of_the_role_do_not_change_how_values_are_printed(database: str) -> None:
    database_name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, f float8, d date, i interval, b bytea, z timestamptz)",
        *(f"ALTER DATABASE {database_name} SET {name}" for name in (
            "extra_float_digits = -5", "DateStyle = 'German'", "IntervalStyle = 'postgres_verbose'",
            "bytea_output = 'escape'", "TimeZone = 'Asia/Tokyo'", "statement_timeout = '500ms'")),
    )  # fmt: skip
    with opened(config(database, "p")) as source:
        source.setup()
        source.start(None)
        execute(database, "INSERT INTO p VALUES (1, 0.1::float8 + 0.2, '2024-02-03', '1 day 2 hours', '\\x00ff',"
                          " '2024-02-03 04:05:06+00')")  # fmt: skip
        row, at, values = messages(source, "I", 1)[0], 8, []
        for _ in range(6):
            size = struct.unpack_from(">I", row, at + 1)[0]
            values.append(row[at + 5 : at + 5 + size].decode())
            at += 5 + size
    assert values == ["1", "0.30000000000000004", "2024-02-03", "P1DT2H", "\\x00ff", "2024-02-03 04:05:06+00"]


def test_large_transactions_are_streamed_before_they_commit(database: str) -> None:
    database_name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, TABLE, f"ALTER DATABASE {database_name} SET logical_decoding_work_mem = '64kB'")
    with opened(config(database, "t")) as source:
        source.setup()
        source.start(None)
        with psycopg.connect(database) as writer:
            writer.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n")
            assert messages(source, "S", 1)


def test_the_first_change_after_a_silence_is_not_held_back(postgres18: Postgres) -> None:
    with postgres18.database("latency") as dsn:
        execute(dsn, TABLE)
        with opened(config(dsn, "t", gather_ms=120_000)) as source, psycopg.connect(dsn, autocommit=True) as writer:
            source.setup()
            source.start(None)
            time.sleep(0.2)
            pump(source)
            source._stream._buffered.last_data = -1e9  # type: ignore[union-attr]
            began = time.monotonic()
            writer.execute("INSERT INTO t VALUES (1, 'a')")
            while not source.read(1):
                pass
            assert time.monotonic() - began < 60, "it was held back to be sent with others"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("C57P01", ConnectionLost),
        ("C58P01\0Mrequested WAL segment 0000 has already been removed", PositionLost),
        ('C55000\0Mcannot read from logical replication slot "x"', PositionLost),
        ('C55000\0Mcan no longer access replication slot "x"', PositionLost),
        ('C42704\0Mreplication slot "x" does not exist', PositionLost),
        ('C42704\0Mpublication "x" does not exist', errors.PublicationLost),
        ('C55006\0Mreplication slot "x" is active for PID 1', errors.SlotInUse),
        ("CXX000\0Msomething else", SourceError),
    ],
)
def test_an_error_in_the_stream_becomes_the_error_it_means(fields: str, kind: type[Exception]) -> None:
    source = PostgresSource(config("dbname=x"))
    with pytest.raises(kind):
        source.server_message("E", fields.encode() + b"\0\0")


def test_notices_are_let_pass_and_the_end_of_the_copy_is_a_lost_connection() -> None:
    source = PostgresSource(config("dbname=x"))
    source.server_message("N", b"SNOTICE\0Mhello\0\0")
    source.server_message("S", b"TimeZone\0UTC\0")
    for kind in "cCZ":
        with pytest.raises(ConnectionLost):
            source.server_message(kind, b"")


@pytest.mark.parametrize("text", ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_a_position_survives_parsing_and_printing(text: str) -> None:
    assert format_lsn(parse_lsn(text)) == Position(text)
