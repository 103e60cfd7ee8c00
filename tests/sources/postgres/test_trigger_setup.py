"""Event triggers themselves: who may make them, how they fail, and what becomes of them under a stream."""

from __future__ import annotations

from pathlib import Path

import orjson
import psycopg
import pytest

from tests.sources.postgres.triggers import TABLE, triggered
from tests.sources.statements import DDL, caught_up, shown
from tests.sources.support import config, execute, opened, query
from tests.support.capturing import capturing, eventually
from tidemill.contracts import Outcome
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.barrier import Barrier
from tidemill.sources.postgres import PostgresSource

ADDED = {"change": "add", "column": "n", "type": "integer", "nullable": True, "after": "v"}


def test_the_triggers_are_made_once_named_by_doctor_and_removed_by_us(database: str) -> None:
    execute(database, TABLE)
    with opened(triggered(database, "t")) as source:
        lines = {check.name: check for check in source.doctor()}
        assert "the setup will make them" in lines["schema changes"].detail
        made = source.setup()
        assert (
            made.did[-1]
            == 'made event triggers "tidemill_ddl_commands" and "tidemill_ddl_drops" and schema "tidemill_ddl"'
        )
        assert source.setup().did == ()
        assert source.notices() == ()
        lines = {check.name: check for check in source.doctor()}
        assert lines["schema changes"].outcome is Outcome.PASS
        assert '"tidemill_ddl_commands"' in lines["schema changes"].detail
        execute(database, "ALTER EVENT TRIGGER tidemill_ddl_drops DISABLE")
        lines = {check.name: check for check in source.doctor()}
        assert "disabled" in lines["schema changes"].detail
        assert len(source.setup().did) == 1
        assert source.remove_triggers() == [
            'event trigger "tidemill_ddl_commands"', 'event trigger "tidemill_ddl_drops"', 'schema "tidemill_ddl"'
        ]  # fmt: skip
        assert source.remove_triggers() == []
        assert query(database, "SELECT count(*) FROM pg_event_trigger") == [(0,)]
        execute(database, source.trigger_script())
        assert source.setup().did == ()


def test_an_account_that_may_not_make_them_is_told_and_goes_by_what_the_stream_announces(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role = f"cdc_{name}"
    execute(
        database,
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {name} TO {role}",
        f"GRANT ALL ON SCHEMA public TO {role}",
        TABLE,
        f"ALTER TABLE t OWNER TO {role}",
    )
    settings = triggered(psycopg.conninfo.make_conninfo(database, user=role), "t")
    try:
        with opened(settings) as source:
            lines = {check.name: check for check in source.doctor()}
            assert lines["schema changes"].outcome is Outcome.WARN
            assert "tidemill source trigger FILE --sql" in lines["schema changes"].fix
            with capturing(source, tmp_path) as running:
                [notice] = [each for each in source.notices() if each.code == "ddl-not-triggered"]
                assert "ermission denied to create event trigger" in notice.what
                execute(
                    database,
                    "INSERT INTO t VALUES (1, 'a')",
                    "ALTER TABLE t ADD n int",
                    "INSERT INTO t VALUES (2, 'b', 3)",
                )
                rows = caught_up(database, running)
                flagged = [entry.barrier for entry in running.log.between(0, running.events) if entry.barrier]
        assert shown(rows) == [{"id": 1, "v": "a"}, ("t", "alter", [ADDED]), {"id": 2, "v": "b", "n": 3}]
        assert flagged == [Barrier.SCHEMA_CHANGE]
    finally:
        execute(
            database, f"SELECT pg_drop_replication_slot('{settings.slot_name}')",
            f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}",
        )  # fmt: skip


def test_a_failure_in_the_trigger_is_a_warning_and_never_that_of_the_statement(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    with opened(triggered(database, "t")) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (1, 'a')", "DROP TABLE tidemill_ddl.tables")
        said: list[str] = []
        with psycopg.connect(database, autocommit=True) as db:
            db.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
            db.execute("ALTER TABLE t ADD COLUMN n int")
        execute(database, "INSERT INTO t VALUES (2, 'b', 3)")
        rows = caught_up(database, running)
    assert any(line.startswith("this change was not written into the stream") for line in said)
    assert shown(rows) == [{"id": 1, "v": "a"}, ("t", "alter", [ADDED]), {"id": 2, "v": "b", "n": 3}]


def test_a_message_with_our_prefix_that_no_trigger_of_ours_wrote_changes_nothing(database: str, tmp_path: Path) -> None:
    """Anybody may write one: pg_logical_emit_message asks for no right."""
    role = f"nobody_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, TABLE, f"CREATE ROLE {role} LOGIN")
    ((oid,),) = query(database, "SELECT 't'::regclass::oid::int8")
    drop = {"version": 1, "event": "drop", "tag": "DROP TABLE", "text": "DROP TABLE t", "before": None,
            "schema": "public", "name": "t", "oid": oid}  # fmt: skip
    empty = {
        "oid": oid, "schema": "public", "name": "t", "kind": "r", "partition": False, "identity": "d",
        "comment": None, "server": 180000, "columns": [], "key": None, "identifying": None, "indexes": {},
        "publications": {},
    }  # fmt: skip
    alter = {"version": 1, "event": "alter", "tag": "ALTER TABLE", "text": "x", "before": None, "after": empty}
    forged = ["", "{}", '{"version": 2}', "[1]", '{"version": 1, "text": 3}']
    forged += [orjson.dumps({**each, **token}).decode() for each in (drop, alter) for token in ({}, {"token": "guess"})]
    nobody = psycopg.conninfo.make_conninfo(database, user=role)
    try:
        with opened(triggered(database, "t")) as source, capturing(source, tmp_path) as running:
            execute(database, "INSERT INTO t VALUES (1, 'a')")
            execute(nobody, *(f"SELECT pg_logical_emit_message(true, 'tidemill.ddl', '{each}')" for each in forged))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                query(nobody, "SELECT token FROM tidemill_ddl.secret")
            execute(database, "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 3)")
            assert shown(caught_up(database, running)) == [
                {"id": 1, "v": "a"},
                ("t", "alter", [ADDED]),
                {"id": 2, "v": "b", "n": 3},
            ]
            # Made anew they have another token, which the stream learns by itself.
            source.remove_triggers()
            source.setup()
            execute(database, "ALTER TABLE t DROP n")
            assert shown(caught_up(database, running))[-1] == (
                "t", "alter", [{"change": "drop", "column": "n", "type": "integer"}],
            )  # fmt: skip
    finally:
        execute(database, f"DROP ROLE {role}")


def test_triggers_that_are_disabled_or_dropped_under_a_stream_are_a_notice_until_they_are_back(
    database: str, tmp_path: Path
) -> None:
    execute(database, TABLE)
    settings = triggered(database, "t", catalog_seconds=0.1)
    with opened(settings) as source, capturing(source, tmp_path) as running:

        def said() -> list[str]:
            return [notice.what for notice in source.notices() if notice.code == "ddl-not-triggered"]

        assert said() == []
        execute(database, "ALTER EVENT TRIGGER tidemill_ddl_commands DISABLE")
        eventually(lambda: said() == ["event triggers that tell changes of tables are disabled"], running)
        execute(
            database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 3)"
        )
        execute(database, "DROP SCHEMA tidemill_ddl CASCADE")
        eventually(lambda: said() == ["event triggers that tell changes of tables are not there"], running)
        source.setup()
        eventually(lambda: said() == [], running)
        assert shown(caught_up(database, running)) == [
            {"id": 1, "v": "a"}, ("t", "alter", [ADDED]), {"id": 2, "v": "b", "n": 3}
        ]  # fmt: skip


def test_a_source_that_did_not_ask_gets_no_event_of_anothers_triggers(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    with opened(triggered(database, "t", id="asks", slot=None)) as asks:
        asks.setup()
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        execute(
            database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 3)"
        )
        rows = caught_up(database, running)
        prefixes = {row["after"]["prefix"] for row in running.rows() if row["table"] == "message"}
        assert [orjson.loads(row["ddl"])["text"] for row in rows if row["op"] == DDL] == [None]  # as announced
        assert {prefix.rpartition(".")[0] for prefix in prefixes} == {"test.end"}
    assert isinstance(source, PostgresSource)
