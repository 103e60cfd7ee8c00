"""Changes of tables told by event triggers: where they stand in the stream, and what they say. On real servers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.sources.support import config, end_session, execute, opened, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.contracts import Outcome
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.barrier import Barrier
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresConfig, PostgresSource

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
TRIGGER = {"ddl": {"capture": "trigger"}}
DDL = 6
_ENDS = itertools.count()


def triggered(dsn: str, *tables: str, **options: Any) -> PostgresConfig:
    return config(dsn, *tables, **{**TRIGGER, **options})


def caught_up(dsn: str, running: Running) -> list[dict[str, Any]]:
    """All events up to a message that is written now."""
    prefix = f"test.end.{next(_ENDS)}"
    execute(dsn, f"SELECT pg_logical_emit_message(true, '{prefix}', '')")
    eventually(lambda: any((row["after"] or {}).get("prefix") == prefix for row in running.rows(last=1)), running)
    return [row for row in running.rows() if row["table"] != "message"]


def shown(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows as tuples of their values, statements as (kind, changes)."""
    found: list[Any] = []
    for row in rows:
        if row["op"] == DDL:
            document = orjson.loads(row["ddl"])
            found.append((row["table"].removeprefix("public."), document["kind"], document["changes"]))
        else:
            found.append(row["after"])
    return found


def changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [change for row in rows if row["op"] == DDL for change in orjson.loads(row["ddl"])["changes"] or ()]


def test_statements_stand_among_the_rows_of_their_transaction_in_exact_order(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    with opened(triggered(database, "t")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("INSERT INTO t VALUES (0, 'first')")
            with db.transaction():
                db.execute("INSERT INTO t VALUES (1, 'a')")
                db.execute("ALTER TABLE t RENAME COLUMN v TO w")
                db.execute("INSERT INTO t VALUES (2, 'b')")
                db.execute("ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7, ALTER COLUMN w SET DEFAULT 'x'")
                db.execute("INSERT INTO t VALUES (3, 'c', 1)")
            with db.transaction(force_rollback=True):
                db.execute("INSERT INTO t VALUES (4, 'd', 1)")
                db.execute("ALTER TABLE t DROP COLUMN n")
            with db.transaction():
                with db.transaction(force_rollback=True):
                    db.execute("ALTER TABLE t DROP COLUMN w")
                db.execute("ALTER TABLE t ALTER COLUMN n TYPE bigint")
            db.execute("INSERT INTO t VALUES (5, 'e', 5000000000)")
        rows = caught_up(database, running)
        assert shown(rows) == [
            {"id": 0, "v": "first"},
            {"id": 1, "v": "a"},
            ("t", "alter", [{"change": "rename", "column": "w", "from": "v"}]),
            {"id": 2, "w": "b"},
            ("t", "alter", [
                {"change": "default", "column": "w", "from": None, "to": "'x'::text"},
                {"change": "add", "column": "n", "type": "integer", "nullable": False, "after": "w"},
            ]),
            {"id": 3, "w": "c", "n": 1},
            ("t", "alter", [
                {"change": "modify", "column": "n", "from": {"type": "integer", "nullable": False},
                 "to": {"type": "bigint", "nullable": False}},
            ]),
            {"id": 5, "w": "e", "n": 5000000000},
        ]  # fmt: skip
        statement = orjson.loads(next(row["ddl"] for row in rows if row["op"] == DDL))
        assert statement["text"] == "ALTER TABLE t RENAME COLUMN v TO w"
        barriers = [entry.barrier for entry in running.log.between(0, running.events) if entry.barrier]
        assert barriers == [Barrier.SCHEMA_CHANGE] * 2  # one for each transaction, none for what is announced after it
    with_statements = [{row["tx_id"] for row in rows[i:j]} for i, j in ((1, 6), (6, 7))]
    assert [len(each) for each in with_statements] == [1, 1]
    registry = SchemaRegistry(tmp_path / "registry.sqlite")
    *_, wider, newest = registry.versions("public.t")
    registry.close()
    assert [c.name for c in newest.columns] == ["id", "w", "n"]
    assert newest.renamed == (("v", "w"),)
    added = wider.columns[2].initial
    assert added is not None
    assert added.value is not None
    assert added.value.as_py() == 7


def test_what_a_structure_does_not_show_is_told(database: str, tmp_path: Path) -> None:
    execute(database, TABLE, "CREATE TABLE made AS SELECT 1 AS a")
    with opened(triggered(database)) as source, capturing(source, tmp_path) as running:
        execute(
            database,
            "CREATE INDEX t_v ON t (v)",
            "COMMENT ON TABLE t IS 'all of them'",
            "COMMENT ON COLUMN t.v IS 'a value'",
            "ALTER TABLE t ALTER COLUMN v SET NOT NULL",
            "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED",
            "ALTER TABLE t ALTER COLUMN g DROP EXPRESSION",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",
            "ALTER TABLE t ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY",
            "COMMENT ON TABLE t IS NULL",
            "COMMENT ON COLUMN t.v IS NULL",
            "DROP INDEX t_v",
            "ALTER TABLE t ADD CONSTRAINT only_v UNIQUE (v)",
            "ALTER TABLE t DROP CONSTRAINT only_v",
            "ALTER TABLE t ADD CONSTRAINT positive CHECK (id > 0)",
            "ALTER TABLE t DROP CONSTRAINT positive",
            "CREATE SEQUENCE counted",
            "ALTER TABLE t ALTER COLUMN g SET DEFAULT nextval('counted')",
            "DROP SEQUENCE counted CASCADE",  # no command names the table
            "CREATE FUNCTION folded(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'",
            "CREATE INDEX t_folded ON t (folded(v))",
            "DROP FUNCTION folded CASCADE",
            "CREATE INDEX CONCURRENTLY t_beside ON t (g)",
            "DROP INDEX CONCURRENTLY t_beside",
        )
        found = changes(caught_up(database, running))
    plain = {"type": "text", "nullable": True}
    generated = {"type": "integer", "nullable": True, "generated": True}
    assert [each for each in found if each["change"] != "index"] == [
        {"change": "comment", "from": None, "to": "all of them"},
        {"change": "comment", "column": "v", "from": None, "to": "a value"},
        {"change": "modify", "column": "v", "from": plain, "to": {**plain, "nullable": False}},
        {"change": "add", "column": "g", **generated, "after": "v"},
        {"change": "modify", "column": "g", "from": generated, "to": {"type": "integer", "nullable": True}},
        {"change": "key", "from": ["id"], "to": ["id", "v"]},
        {"change": "default", "column": "id", "from": None, "to": "GENERATED BY DEFAULT AS IDENTITY"},
        {"change": "comment", "from": "all of them", "to": None},
        {"change": "comment", "column": "v", "from": "a value", "to": None},
        {"change": "default", "column": "g", "from": None, "to": "nextval('public.counted'::regclass)"},
        {"change": "default", "column": "g", "from": "nextval('public.counted'::regclass)", "to": None},
    ]
    indexes = {
        "t_v": "CREATE INDEX t_v ON public.t USING btree (v)",
        "only_v": "CREATE UNIQUE INDEX only_v ON public.t USING btree (v)",
        "t_folded": "CREATE INDEX t_folded ON public.t USING btree (public.folded(v))",
        "t_beside": "CREATE INDEX t_beside ON public.t USING btree (g)",
    }
    assert [each for each in found if each["change"] == "index"] == [
        {"change": "index", "index": name, **sides}
        for name, made in indexes.items()
        for sides in ({"from": None, "to": made}, {"from": made, "to": None})
    ]


def test_tables_are_created_renamed_and_dropped_several_in_one_statement_and_in_functions(
    database: str, tmp_path: Path
) -> None:
    execute(database, TABLE, "CREATE TABLE other (id int PRIMARY KEY)", "CREATE SCHEMA elsewhere")
    with opened(triggered(database, "public.*", "two.*")) as source, capturing(source, tmp_path) as running:
        execute(
            database,
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO other VALUES (1)",
            "CREATE SCHEMA two CREATE TABLE a (id int PRIMARY KEY) CREATE TABLE b (id int PRIMARY KEY)",
            "CREATE TABLE elsewhere.hidden (id int PRIMARY KEY)",  # not captured
            "CREATE TEMP TABLE passing (id int)",
            "ALTER TABLE t RENAME TO u",
            "CREATE FUNCTION grow() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
            " ALTER TABLE u ADD COLUMN f int; ALTER TABLE other ADD COLUMN f int; END $$",
            "SELECT grow()",
            "DROP TABLE u, other",
        )
        rows = [row for row in caught_up(database, running) if row["op"] == DDL]
    created = [{"change": "add", "column": "id", "type": "integer", "nullable": False, "first": True}]
    renamed = [{"change": "rename_table", "from": "public.t", "to": "public.u"}]
    documents = {(row["table"], orjson.loads(row["ddl"])["kind"]): orjson.loads(row["ddl"]) for row in rows}
    told = [(row["table"], orjson.loads(row["ddl"])["kind"]) for row in rows]
    assert told[:-2] == [
        ("two.a", "create"), ("two.b", "create"), ("public.t", "rename"), ("public.u", "rename"),
        ("public.u", "alter"), ("public.other", "alter"),
    ]  # fmt: skip
    assert sorted(told[-2:]) == [("public.other", "drop"), ("public.u", "drop")]  # the server chooses their order
    assert documents["two.a", "create"]["changes"] == created
    assert documents["public.t", "rename"]["changes"] == documents["public.u", "rename"]["changes"] == renamed
    assert documents["public.u", "alter"]["text"] == "SELECT grow()"
    assert documents["public.other", "alter"]["changes"] == [
        {"change": "add", "column": "f", "type": "integer", "nullable": True, "after": "id"}
    ]
    assert documents["public.other", "drop"]["text"] == "DROP TABLE u, other"


def test_no_name_search_path_or_temporary_table_misleads_a_trigger(postgres18: Postgres, tmp_path: Path) -> None:
    with postgres18.database("misleading_names") as database:
        execute(database, 'CREATE SCHEMA "a.b"', 'CREATE TABLE "a.b"."c""d" (id int PRIMARY KEY, "x.y" text)', TABLE)
        with opened(triggered(database)) as source, capturing(source, tmp_path) as running:
            execute(
                database,
                """ALTER TABLE "a.b"."c""d" RENAME COLUMN "x.y" TO "'; --" """,
                """INSERT INTO "a.b"."c""d" VALUES (1, 'a')""",
                """CREATE INDEX "i.j" ON "a.b"."c""d" ("'; --")""",
                'DROP INDEX "a.b"."i.j"',
                "CREATE TEMP TABLE t (id int, z int)",
                "ALTER TABLE t ADD q int",
                "CREATE INDEX t_q ON t (q)",
                "DROP INDEX t_q",
                "DROP TABLE t",
                "CREATE TEMP TABLE pg_class (oid oid)",
                "CREATE FUNCTION pg_temp.current_query() RETURNS text LANGUAGE sql AS $$ SELECT 'forged' $$",
                'SET search_path = pg_temp, "a.b"',
                "ALTER TABLE public.t ADD n int",
                'ALTER SCHEMA "a.b" RENAME TO moved',
            )
            rows = caught_up(database, running)
    index = """CREATE INDEX "i.j" ON "a.b"."c""d" USING btree ("'; --")"""
    moved = [{"change": "rename_table", "from": 'a.b.c"d', "to": 'moved.c"d'}]
    assert shown(rows) == [
        ('a.b.c"d', "alter", [{"change": "rename", "column": "'; --", "from": "x.y"}]),
        {"id": 1, "'; --": "a"},
        ('a.b.c"d', "alter", [{"change": "index", "index": "i.j", "from": None, "to": index}]),
        ('a.b.c"d', "alter", [{"change": "index", "index": "i.j", "from": index, "to": None}]),
        ("t", "alter", [{"change": "add", "column": "n", "type": "integer", "nullable": True, "after": "v"}]),
        ('a.b.c"d', "rename", moved),
        ('moved.c"d', "rename", moved),
    ]
    assert [orjson.loads(row["ddl"])["text"] for row in rows if row["table"] == "public.t"] == [
        "ALTER TABLE public.t ADD n int"
    ]


def test_a_partitioned_table_is_told_as_one(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    with opened(triggered(database, "p")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database) as db:
            db.execute("INSERT INTO p VALUES (1, 'a')")
            db.execute("ALTER TABLE p RENAME COLUMN v TO w")
            db.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
            db.execute("INSERT INTO p VALUES (11, 'b')")
        rows = caught_up(database, running)
    assert shown(rows) == [
        {"id": 1, "v": "a"},
        ("p", "alter", [{"change": "rename", "column": "w", "from": "v"}]),
        {"id": 11, "w": "b"},
    ]


def test_what_is_streamed_before_its_commit_keeps_its_place_and_what_is_rolled_back_leaves_nothing(
    database: str, tmp_path: Path
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    execute(database, TABLE, f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    much = "INSERT INTO t (id, v) SELECT n, repeat('x', 100) FROM generate_series({}, {}) n"
    with opened(triggered(database, "t")) as source, capturing(source, tmp_path) as running:
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("INSERT INTO t VALUES (0, 'a')")
            with db.transaction(force_rollback=True):
                db.execute("ALTER TABLE t ALTER COLUMN v SET NOT NULL")
                db.execute(much.format(1, 3000).encode())
            db.execute("INSERT INTO t VALUES (1, NULL)")
            with db.transaction():
                db.execute(much.format(2, 2000).encode())
                db.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 3")
                db.execute(much.format(2001, 4000).encode())
        rows = caught_up(database, running)
        newest = SchemaRegistry(tmp_path / "registry.sqlite")
        table = newest.newest("public.t")
        newest.close()
    ids = ["ddl" if row["op"] == DDL else row["after"]["id"] for row in rows]
    assert ids == [*range(2001), "ddl", *range(2001, 4001)]
    assert table is not None
    assert [(c.name, c.nullable) for c in table.columns] == [("id", False), ("v", True), ("n", True)]


def test_a_capture_that_is_cut_off_tells_each_statement_once(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    settings = triggered(database, "t")
    with opened(settings) as source, capturing(source, tmp_path) as running:
        execute(database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t RENAME COLUMN v TO w")
        before = caught_up(database, running)
        end_session(database, settings)
        execute(database, "ALTER TABLE t RENAME COLUMN w TO x", "INSERT INTO t VALUES (2, 'b')")
        caught_up(database, running)
    # Nobody captures: the catalog is far ahead of the stream when it goes on.
    execute(
        database,
        "ALTER TABLE t RENAME COLUMN x TO y",
        "INSERT INTO t VALUES (3, 'c')",
        "ALTER TABLE t DROP COLUMN y",
        "ALTER TABLE t ADD COLUMN y int",
        "INSERT INTO t VALUES (4, 4)",
    )
    with opened(settings) as source, capturing(source, tmp_path) as running:
        rows = caught_up(database, running)
    assert rows[: len(before)] == before
    renames = [{"change": "rename", "column": now, "from": was} for was, now in ("vw", "wx", "xy")]
    assert shown(rows) == [
        {"id": 1, "v": "a"}, ("t", "alter", [renames[0]]), ("t", "alter", [renames[1]]), {"id": 2, "x": "b"},
        ("t", "alter", [renames[2]]), {"id": 3, "y": "c"},
        ("t", "alter", [{"change": "drop", "column": "y", "type": "text"}]),
        ("t", "alter", [{"change": "add", "column": "y", "type": "integer", "nullable": True, "after": "id"}]),
        {"id": 4, "y": 4},
    ]  # fmt: skip


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
        assert [row["after"] for row in rows] == [{"id": 1, "v": "a"}, {"id": 2, "v": "b", "n": 3}]
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
    assert shown(rows) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b", "n": 3}]


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
                ("t", "alter", [{"change": "add", "column": "n", "type": "integer", "nullable": True, "after": "v"}]),
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
        assert shown(caught_up(database, running)) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b", "n": 3}]


def test_a_source_that_did_not_ask_gets_no_event_of_anothers_triggers(database: str, tmp_path: Path) -> None:
    execute(database, TABLE)
    with opened(triggered(database, "t", id="asks", slot=None)) as asks:
        asks.setup()
    with opened(config(database, "t")) as source, capturing(source, tmp_path) as running:
        execute(
            database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 3)"
        )
        caught_up(database, running)
        prefixes = {row["after"]["prefix"] for row in running.rows() if row["table"] == "message"}
        assert [row["op"] for row in running.rows() if row["table"] != "message"] == [1, 1]
        assert {prefix.rpartition(".")[0] for prefix in prefixes} == {"test.end"}
    assert isinstance(source, PostgresSource)
