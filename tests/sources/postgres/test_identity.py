"""Whether the server still has the history that our position belongs to: restored, failed over, or only crashed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.sources.statements import DDL
from tests.sources.support import config, execute, opened, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.contracts import Outcome, Resting
from tidemill.errors import PositionLost
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresConfig, PostgresSource
from tidemill.sources.postgres import witness as witnesses
from tidemill.sources.postgres.errors import NoReplicaIdentity
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn
from tidemill.sources.postgres.publication.keys import KEYS

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def insert(dsn: str, first: int, last: int) -> None:
    """Each in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as db:
        for number in range(first, last):
            db.execute("INSERT INTO t VALUES (%s, repeat('x', 500))", [number])


def ids(run: Running) -> list[int]:
    return [row["after"]["id"] for row in run.rows()]


def has(run: Running, events: int) -> bool:
    return run.events >= events


def capture(settings: PostgresConfig, directory: Path, events: int, *, deliver: bool = False) -> list[int]:
    """Ids of all that is in the log once it has so many events."""
    with capturing(PostgresSource(settings), directory) as run:
        eventually(lambda: run.events >= events, run)
        if deliver:
            run.deliver()
            confirm(run, settings)
        return ids(run)


def confirm(run: Running, settings: PostgresConfig) -> None:
    """Waits until the server was told of all events that the log has."""
    statement = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{settings.slot_name}'"
    tail = parse_lsn(run.log.tail().position)
    eventually(lambda: parse_lsn(query(settings.dsn, statement)[0][0]) >= tail, run)


def write_past_our_position(settings: PostgresConfig, directory: Path) -> None:
    """Rows that were never captured, until the server's WAL is longer than what our log has of the old one."""
    ours = parse_lsn(LogReader(str(directory / "log")).tail().position)
    for first in range(1000, 10000, 50):
        insert(settings.dsn, first, first + 50)
        if parse_lsn(query(settings.dsn, "SELECT pg_current_wal_lsn()::text")[0][0]) > ours:
            return
    raise AssertionError(f"9000 rows did not bring the server past {format_lsn(ours)}")


def refused(settings: PostgresConfig, directory: Path) -> PositionLost:
    try:
        with capturing(PostgresSource(settings), directory) as run:
            eventually(lambda: run.failure)
            error = run.failure[0]
    except PositionLost as early:
        error = early
    assert isinstance(error, PositionLost), error
    assert "recover" in error.fix
    return error


@contextmanager
def server_with_table() -> Iterator[tuple[Postgres, PostgresConfig]]:
    with Postgres(durable=False) as server:
        dsn = server.create_database("src")
        execute(dsn, TABLE)
        yield server, PostgresConfig(id="s", dsn=dsn, tables=("public.t",), feedback_seconds=0.1)


@pytest.mark.parametrize("delivered", [False, True], ids=["undelivered", "delivered"])
def test_a_server_that_was_put_back_and_wrote_past_our_position_is_a_lost_position(
    tmp_path: Path, delivered: bool
) -> None:
    """System identifier and timeline are the same, its WAL is longer than our position, the slot stands before it."""
    with server_with_table() as (server, settings):
        PostgresSource(settings).setup()
        insert(settings.dsn, 0, 2)
        if delivered:
            capture(settings, tmp_path, 2, deliver=True)
        server.stop("fast")
        shutil.copytree(server.data, tmp_path / "old", symlinks=True)
        server.start()
        insert(settings.dsn, 2, 20)
        capture(settings, tmp_path, 20, deliver=delivered)
        server.stop("fast")
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "old", server.data, symlinks=True)
        server.start()
        write_past_our_position(settings, tmp_path)
        assert "history is another one" in refused(settings, tmp_path).what


def test_a_server_that_was_put_back_and_is_idle_since_is_a_lost_position(tmp_path: Path) -> None:
    """No event is missing in its WAL by number: our log ends before it, only a message of ours came later."""
    with server_with_table() as (server, settings):
        PostgresSource(settings).setup()
        insert(settings.dsn, 0, 2)
        capture(settings, tmp_path, 2)
        server.stop("fast")
        shutil.copytree(server.data, tmp_path / "old", symlinks=True)
        server.start()
        capture(settings, tmp_path, 2, deliver=True)
        server.stop("fast")
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "old", server.data, symlinks=True)
        server.start()
        assert "before a transaction that it sent" in refused(settings, tmp_path).what


def test_another_server_with_a_slot_of_the_same_name_is_a_lost_position(tmp_path: Path) -> None:
    with server_with_table() as (_, first), server_with_table() as (_, second):
        PostgresSource(second).setup()
        PostgresSource(first).setup()
        insert(first.dsn, 0, 2)
        capture(first, tmp_path, 2)
        insert(second.dsn, 0, 200)
        assert "another server" in refused(second, tmp_path).what
        capture(first, tmp_path, 2)
        with opened(second) as source:
            schemas = SchemaRegistry(tmp_path / "registry.sqlite")
            began = source.setup().position
            checks = {c.name: c for c in source.doctor(Resting(began, None, 0.0, schemas.recall))}
            schemas.close()
        assert checks["server"].outcome is Outcome.FAIL
        assert "another server" in checks["server"].detail


def test_another_server_without_our_slot_and_publication_is_said_to_be_another_server(tmp_path: Path) -> None:
    with server_with_table() as (_, first), server_with_table() as (_, second):
        PostgresSource(first).setup()
        insert(first.dsn, 0, 2)
        capture(first, tmp_path, 2)
        error = refused(second, tmp_path)
        assert "is another server than the one that was captured" in error.what
        assert error.fix.startswith("Check the dsn.")
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as schemas, opened(second) as source:
            failed = [c for c in source.doctor(Resting(Position("0/10"), None, 0.0, schemas.recall)) if c.fix]
        assert [(check.name, check.detail) for check in failed] == [("server", error.what)], (
            "nothing else is to be done"
        )
        assert query(second.dsn, "SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_role_that_may_not_ask_for_the_identifier_is_compared_at_the_login(tmp_path: Path) -> None:
    with server_with_table() as (_, first), server_with_table() as (_, second):
        PostgresSource(second).setup()
        PostgresSource(first).setup()
        insert(first.dsn, 0, 2)
        capture(first, tmp_path, 2)
        execute(second.dsn, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
                "CREATE ROLE weak REPLICATION LOGIN")  # fmt: skip
        weak = second.model_copy(update={"dsn": make_conninfo(second.dsn, user="weak")})
        assert "this is another server" in refused(weak, tmp_path).what


def test_a_server_that_crashed_goes_on_without_alarm_loss_or_duplicates(tmp_path: Path) -> None:
    with server_with_table() as (server, settings):
        PostgresSource(settings).setup()
        with capturing(PostgresSource(settings), tmp_path) as run:
            for first in range(0, 60, 10):
                insert(settings.dsn, first, first + 7)
                if first % 20:
                    eventually(partial(has, run, first + 7), run)
                    run.deliver()
                if first % 30:
                    server.kill()
                else:
                    server.stop("immediate")
                server.start()
                insert(settings.dsn, first + 7, first + 10)
                eventually(partial(has, run, first + 10), run)
            assert ids(run) == list(range(60))
        # And a restart of ours on top.
        server.kill()
        server.start()
        insert(settings.dsn, 60, 63)
        assert capture(settings, tmp_path, 63, deliver=True) == list(range(63))
        assert capture(settings, tmp_path, 63) == list(range(63))


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
def test_a_large_transaction_that_comes_again_to_be_compared_is_not_stored_again(
    database: str, tmp_path: Path, streaming: bool
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, TABLE, f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    settings = config(database, "t", streaming=streaming, heartbeat_seconds=0)
    PostgresSource(settings).setup()
    execute(database, "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(0, 19999) n")
    assert len(capture(settings, tmp_path, 20000)) == 20000
    execute(database, "INSERT INTO t VALUES (20000, 'last')")
    assert capture(settings, tmp_path, 20001) == list(range(20001))


def test_what_was_logged_since_the_last_note_is_compared_too(database: str, tmp_path: Path) -> None:
    """The process died before it could remember its last transactions, and these are other ones now."""
    execute(database, TABLE)
    settings = config(database, "t", heartbeat_seconds=0)
    PostgresSource(settings).setup()
    insert(database, 0, 2)
    capture(settings, tmp_path, 2)
    remembered = SchemaRegistry(tmp_path / "registry.sqlite")
    early = (remembered.recall(witnesses.NAME) or b"").replace(b'"closed":true', b'"closed":false')
    insert(database, 2, 5)
    assert capture(settings, tmp_path, 5) == list(range(5))
    remembered.remember(witnesses.NAME, early)
    assert capture(settings, tmp_path, 5) == list(range(5)), "the same history, only noted late"
    remembered.remember(witnesses.NAME, early)
    insert(database, 5, 8)
    witness = witnesses.WalWitness(settings, remembered)
    assert witness.last is not None
    end = witness.last.end + 8
    assert witness.rewind(end, 0) == witness.last.lsn
    with opened(settings) as source:
        source.open(format_lsn(end), remembered, confirmed=None)
        with pytest.raises(PositionLost, match="ends at our last position"):
            eventually(lambda: any(source.changes(0.2)) and False)  # nothing yet is no answer
    remembered.close()


def test_a_database_without_changes_has_a_witness_that_nobody_sees(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    settings = config(database, "t", feedback_seconds=0.1)
    with capturing(PostgresSource(settings), tmp_path) as run:
        schemas = SchemaRegistry(tmp_path / "registry.sqlite")
        eventually(lambda: (kept := witnesses.recall(schemas.recall)) and kept.last, run)
        schemas.close()
        assert run.events == 0
    assert capture(settings, tmp_path, 0) == []


def test_an_account_that_may_not_write_messages_is_served_all_the_same(database: str, tmp_path: Path) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(
        database, TABLE, "CREATE ROLE mute LOGIN REPLICATION", "ALTER TABLE t OWNER TO mute",
        f"GRANT CREATE ON DATABASE {name} TO mute",
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM public"
        if query(database, "SELECT current_setting('server_version_num')::int >= 170000")[0][0] else
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) FROM public",
    )  # fmt: skip
    settings = config(database.replace("postgres@", "mute@"), "t", feedback_seconds=0.1)
    try:
        PostgresSource(settings).setup()
        insert(database, 0, 3)
        assert capture(settings, tmp_path, 3) == [0, 1, 2]
        insert(database, 3, 5)
        assert capture(settings, tmp_path, 5) == [0, 1, 2, 3, 4]
    finally:
        execute(database, "DROP OWNED BY mute; DROP ROLE mute")


def test_state_of_a_version_without_a_witness_is_taken_as_it_is(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    settings = config(database, "t")
    PostgresSource(settings).setup()
    insert(database, 0, 3)
    capture(settings, tmp_path, 3)
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    schemas.remember(witnesses.NAME, None)
    insert(database, 3, 5)
    assert capture(settings, tmp_path, 5) == [0, 1, 2, 3, 4]
    kept = witnesses.recall(schemas.recall)
    schemas.close()
    assert kept is not None
    assert kept.last is not None


@contextmanager
def standby_of(primary: Postgres, directory: Path) -> Iterator[Postgres]:
    """A standby of the primary; `sync_slot` brings it the primary's failover slots."""
    primary.query("SELECT pg_create_physical_replication_slot('standby', true)")
    standby = Postgres(durable=False, directory=directory, hot_standby_feedback=True, sync_replication_slots=True)
    directory.mkdir()
    standby._account.own(directory)
    command = [str(primary.bin_dir / "pg_basebackup"), "-D", str(standby.data), "-R", "-S", "standby", "-c", "fast",
               "-d", f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"]  # fmt: skip
    subprocess.run([*standby._account.prefix, *command], check=True, capture_output=True)
    standby._write_settings()
    try:
        yield standby.start()
    finally:
        standby.stop("immediate")
        standby.close()


def promote(standby: Postgres, settings: PostgresConfig, primary: Postgres) -> PostgresConfig:
    standby.query("SELECT pg_promote()")
    dsn = settings.dsn.replace(f":{primary.port}/", f":{standby.port}/")
    return settings.model_copy(update={"dsn": dsn})


def sync_slot(primary: Postgres, standby: Postgres, settings: PostgresConfig, directory: Path) -> int:
    """Writes and delivers rows until the standby has the slot; returns how many there are.

    A standby keeps a slot only once its catalog_xmin and restart_lsn have passed those that the standby could reserve
    when it first saw it (manual 47.2.3): at a slot that does not move that never happens. A snapshot of running
    transactions, read and confirmed, lets it move. The standby's worker naps up to 30 seconds; a reload wakes it."""
    statement = (
        f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{settings.slot_name}' AND synced AND NOT temporary"
    )
    rows = 0

    def sync() -> bool:
        nonlocal rows
        primary.query("SELECT pg_log_standby_snapshot()")
        insert(settings.dsn, rows, rows + 5)
        rows += 5
        eventually(lambda: run.events >= rows, run)
        run.deliver()
        confirm(run, settings)
        standby.query("SELECT pg_reload_conf()")
        return bool(standby.query(statement))

    with capturing(PostgresSource(settings), directory) as run:
        eventually(sync, run)
    return rows


def test_a_failover_that_has_all_our_wal_goes_on_without_alarm_loss_or_duplicates(tmp_path: Path) -> None:
    with server_with_table() as (primary, plain):
        settings = plain.model_copy(update={"failover": True, "heartbeat_seconds": 0.5})
        PostgresSource(settings).setup()
        with standby_of(primary, tmp_path / "standby") as standby:
            primary.config(synchronized_standby_slots="standby")
            rows = sync_slot(primary, standby, settings, tmp_path)
            insert(settings.dsn, rows, rows + 5)
            assert capture(settings, tmp_path, rows + 5) == list(range(rows + 5))
            primary.kill()
            moved = promote(standby, settings, primary)
            insert(moved.dsn, rows + 5, rows + 10)
            assert capture(moved, tmp_path, rows + 10, deliver=True) == list(range(rows + 10))
            standby.restart("immediate")
            insert(moved.dsn, rows + 10, rows + 13)
            assert capture(moved, tmp_path, rows + 13) == list(range(rows + 13))


def test_a_standby_promoted_without_our_last_wal_is_a_lost_position(tmp_path: Path) -> None:
    with server_with_table() as (primary, plain):
        settings = plain.model_copy(update={"failover": True, "heartbeat_seconds": 0.5})
        PostgresSource(settings).setup()
        with standby_of(primary, tmp_path / "standby") as standby:
            rows = sync_slot(primary, standby, settings, tmp_path)
            standby.stop("fast")
            insert(settings.dsn, rows, rows + 5)
            capture(settings, tmp_path, rows + 5)
            primary.kill()
            standby.start()
            moved = promote(standby, settings, primary)
            write_past_our_position(moved, tmp_path)
            assert "timeline 2, which left ours (1)" in refused(moved, tmp_path).what


def row_blocks(run: Running) -> list[Block]:
    blocks = [run.log.read(ref) for ref in run.log.refs(0, run.log.tail().offset)]
    return [block for block in blocks if DDL not in block.batch.column("op").to_pylist()]


def has_rows(run: Running, rows: int) -> bool:
    return sum(block.rows for block in row_blocks(run)) >= rows


def keys_used(run: Running) -> list[tuple[str, ...]]:
    return [block.table.key for block in row_blocks(run)]


def test_a_primary_key_that_changes_under_full_holds_for_the_next_row(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE t (id int NOT NULL, region text NOT NULL, v text, PRIMARY KEY (id))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    with capturing(PostgresSource(config(database, "t")), tmp_path) as run:
        execute(database, "INSERT INTO t VALUES (1, 'a', 'x')")
        eventually(partial(has_rows, run, 1), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, region)")
        execute(database, "INSERT INTO t VALUES (1, 'b', 'y')")
        eventually(partial(has_rows, run, 2), run)
        assert keys_used(run) == [("id",), ("id", "region")]
        # A narrower one may be ahead of rows that only the wider one tells apart: it stays.
        execute(database, "DELETE FROM t WHERE region = 'a'")
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)")
        execute(database, "UPDATE t SET v = 'z'")
        eventually(partial(has_rows, run, 4), run)
        assert set(keys_used(run)[1:]) == {("id", "region")}


@pytest.mark.parametrize("seen", ["at the setup", "by a look"])
def test_a_primary_key_that_changed_under_full_before_the_table_was_met_tells_its_rows_apart(
    database: str, tmp_path: Path, seen: str
) -> None:
    """The catalog has only the key of now; under it, the row that stays and the one that goes would be the same."""
    table = (
        "CREATE TABLE t (id int NOT NULL, region text NOT NULL, v text, PRIMARY KEY (id))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    rekey = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY"
    settings = config(database, "t")
    if seen == "at the setup":
        execute(database, *table)
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as schemas, opened(settings) as source:
            source.setup(None, schemas)
    else:
        with capturing(PostgresSource(settings), tmp_path) as run:
            execute(database, *table)
            eventually(lambda: KEY_OF_T in noted(tmp_path), run)
    execute(
        database,
        "INSERT INTO t VALUES (1, 'x', 'one'), (2, 'x', 'two')",
        "DELETE FROM t WHERE id = 2",
        f"{rekey} (region)",
        "INSERT INTO t VALUES (3, 'y', 'three')",
    )
    with capturing(PostgresSource(settings), tmp_path) as run:
        eventually(partial(has, run, 4), run)
        assert set(keys_used(run)) == {("id", "region")}


def test_a_primary_key_of_before_the_position_is_forgotten(database: str, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE t (id int NOT NULL, region text NOT NULL, PRIMARY KEY (id))")
    with capturing(PostgresSource(config(database, "t", catalog_seconds=0.05, feedback_seconds=0.1)), tmp_path) as run:
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (region)")
        eventually(lambda: b'[["region"],""]' in noted(tmp_path), run)
        assert b'[["id"],"' in noted(tmp_path)
        ((lsn,),) = query(database, "SELECT pg_current_wal_insert_lsn()::text")
        execute(database, "INSERT INTO t VALUES (1, 'x')")
        eventually(partial(has, run, 1), run)
        run.deliver()
        confirmed = (
            f"SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn > '{lsn}'"
        )
        eventually(lambda: query(database, confirmed), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, region)")
        eventually(lambda: b'[["id","region"],""]' in noted(tmp_path), run)
        assert b'[["id"],' not in noted(tmp_path)


KEY_OF_T = b'[["id"],""]'


def noted(directory: Path) -> bytes:
    with closing(SchemaRegistry(directory / "registry.sqlite")) as schemas:
        return schemas.recall(KEYS) or b""


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_rows_of_a_table_whose_primary_key_is_gone_have_no_key(database: str, tmp_path: Path, identity: str) -> None:
    """Under the key that it had, rows that are two by now would become one."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
    )
    with capturing(PostgresSource(config(database, "t", replica_identity="keep")), tmp_path) as run:
        execute(database, "INSERT INTO t VALUES (1, 'a')")
        eventually(partial(has_rows, run, 1), run)
        execute(database, "ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 'b')")
        eventually(partial(has_rows, run, 2), run)
        assert keys_used(run) == [("id",), ()]


def test_a_partition_that_logs_only_its_key_brings_no_invented_nulls(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, v text NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "ALTER TABLE p1 REPLICA IDENTITY FULL",
    )
    with capturing(PostgresSource(config(database, "p", replica_identity="keep")), tmp_path) as run:
        execute(database, "INSERT INTO p VALUES (1, 'one')", "DELETE FROM p")
        eventually(partial(has, run, 2), run)
        execute(
            database, "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
            "INSERT INTO p VALUES (101, 'a'), (102, 'b')",
            "UPDATE p SET id = 103 WHERE id = 102", "DELETE FROM p WHERE id = 101",
        )  # fmt: skip
        eventually(partial(has, run, 7), run)
        images = [(row["op"], row["key"], row["before"]) for row in run.rows() if row["op"] == 3]
    assert images == [(3, None, {"id": 1, "v": "one"}), (3, {"id": 102}, None), (3, {"id": 101}, None)]


def test_a_partition_whose_identity_is_another_key_stops_capture(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, code int NOT NULL) PARTITION BY RANGE (id)",
        "ALTER TABLE p REPLICA IDENTITY FULL",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE UNIQUE INDEX by_code ON p1 (code)",
        "ALTER TABLE p1 REPLICA IDENTITY USING INDEX by_code",
    )
    with capturing(PostgresSource(config(database, "p", replica_identity="auto")), tmp_path) as run:
        execute(database, "INSERT INTO p VALUES (1, 2)")
        eventually(lambda: run.failure)
        assert isinstance(run.failure[0], NoReplicaIdentity)
