"""Marks of tables that may lack changes: how long they stay, and who takes them away."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.sources.postgres.publication.support import TABLE, Make, Watched, ids
from tests.sources.support import execute, query
from tests.support.capturing import eventually
from tidemill.schema.registry import SchemaRegistry


def test_a_mark_of_a_table_that_comes_back_empty_is_closed_and_stays(database: str, tmp_path: Path) -> None:
    role = f"reader_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, TABLE, "INSERT INTO t VALUES (1)", f"CREATE ROLE {role} LOGIN REPLICATION",
            "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)")  # fmt: skip
    it = Watched(database.replace("postgres@", f"{role}@"), tmp_path, "public.*", publication="mine")
    with it.running():
        execute(database, "ALTER PUBLICATION mine DROP TABLE t")
        it.notice("table-incomplete", "public.t", "since")
        execute(database, "DELETE FROM t", "VACUUM t")
        assert query(database, "SELECT pg_relation_size('t')") == [(0,)]
        execute(database, "ALTER PUBLICATION mine ADD TABLE t")
        eventually(lambda: not it.notices("table-unpublished"))
        it.looked()
        it.notice("table-incomplete", "public.t", "between")
    execute(database, f"DROP ROLE {role}")


def test_a_table_that_was_emptied_after_its_mark_was_accepted_is_marked_anew(database: str, tmp_path: Path) -> None:
    role = f"reader_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, TABLE, "INSERT INTO t VALUES (1)", f"CREATE ROLE {role} LOGIN REPLICATION",
            "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)")  # fmt: skip
    it = Watched(database.replace("postgres@", f"{role}@"), tmp_path, "public.*", publication="mine")
    with it.running():
        execute(database, "ALTER PUBLICATION mine DROP TABLE t")
        it.notice("table-incomplete", "public.t")
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    it.source.accept("public.t", schemas)
    schemas.close()
    execute(database, "DELETE FROM t", "VACUUM t", "ALTER PUBLICATION mine ADD TABLE t")
    assert query(database, "SELECT pg_relation_size('t')") == [(0,)]
    with it.running():
        it.notice("table-incomplete", "public.t")
    execute(database, f"DROP ROLE {role}")


def test_what_happens_between_the_setup_and_the_first_start_is_marked(watched: Make, tmp_path: Path) -> None:
    it = watched("t")
    it.execute(TABLE)
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    it.source.setup(None, schemas)
    schemas.close()
    name = it.config.publication_name
    it.execute("INSERT INTO t VALUES (1)", f"ALTER PUBLICATION {name} DROP TABLE t", "INSERT INTO t VALUES (2)",
               f"ALTER PUBLICATION {name} ADD TABLE t", "INSERT INTO t VALUES (3)")  # fmt: skip
    with it.running() as run:
        eventually(lambda: ids(run) == [1, 3], run)
        it.notice("table-incomplete", "public.t", "taken out of the publication and put back")


def test_marks_survive_restarts_until_somebody_accepts_them(watched: Make, tmp_path: Path) -> None:
    it = watched("t", "u")
    it.execute(TABLE, "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    with it.running():
        it.execute("DROP TABLE t", f"ALTER PUBLICATION {it.config.publication_name} DROP TABLE u")
        it.notice("table-incomplete", "public.u")
        it.notice("table-dropped", "public.t")
    with it.running():
        assert {n.subject for n in it.notices("table")} == {"public.t", "public.u"}
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    assert it.source.accept("public.x", schemas) == ()
    assert [n.code for n in it.source.accept("public.u", schemas)] == ["table-incomplete"]
    schemas.close()
    with it.running():
        it.looked()
        assert {n.subject for n in it.notices("table")} == {"public.t"}


def test_a_process_that_was_killed_after_it_added_a_table_still_marks_it(watched: Make, tmp_path: Path) -> None:
    it = watched("public.*")
    it.execute(TABLE)
    with it.running():
        pass
    # As it did, and no longer could write down:
    it.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)",
               f"ALTER PUBLICATION {it.config.publication_name} ADD TABLE u")  # fmt: skip
    with it.running():
        it.notice("table-incomplete", "public.u")


def test_a_state_directory_from_before_there_was_a_watch_is_taken_as_it_is(watched: Make, tmp_path: Path) -> None:
    it = watched("public.*")
    it.execute(TABLE)
    with it.running():
        pass
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    schemas.remember("postgres.publication", None)
    schemas.close()
    it.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    with it.running():
        it.notice("table-incomplete", "public.u")
        assert [(n.code, n.subject) for n in it.notices()] == [("table-incomplete", "public.u")]


def test_marks_of_many_tables_are_accepted_by_a_pattern(watched: Make, tmp_path: Path) -> None:
    it = watched("public.*")
    it.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("stage_1", "stage_2", "kept")))
    with it.running():
        it.execute("DROP TABLE stage_1, stage_2, kept")
        it.notice("table-dropped", "public.kept")
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    assert [n.subject for n in it.source.accept("public.stage%", schemas)] == ["public.stage_1", "public.stage_2"]
    assert [n.subject for n in it.source.accept("public.kept", schemas)] == ["public.kept"]
    schemas.close()
