"""Whether the server still has the history that our position belongs to: restored, replaced, or only crashed."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.sources.postgres.histories import (
    TABLE,
    capture,
    has,
    ids,
    insert,
    refused,
    server_with_table,
    write_past_our_position,
)
from tests.sources.support import config, execute, opened, query
from tests.support.capturing import capturing, eventually
from tidemill.contracts import Outcome, Resting
from tidemill.errors import PositionLost
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.postgres import witness as witnesses
from tidemill.sources.postgres.lsn import format_lsn


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
