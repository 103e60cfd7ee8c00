"""A publication that is dropped, made anew or altered under a running stream."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.sources.postgres.publication.support import TABLE, TREE, Make, Watched, each_version, ids
from tests.sources.support import execute
from tests.support.capturing import capturing, eventually
from tidemill.capture.loop import Limits
from tidemill.errors import PositionLost, SetupError, is_retryable
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.postgres.errors import PublicationLost


@each_version
def test_a_publication_that_is_dropped_stops_the_pipeline_at_once(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run:
        it.execute(f"DROP PUBLICATION {it.config.publication_name}")
        eventually(lambda: run.failure)
    (error,) = run.failure
    assert isinstance(error, PositionLost)
    assert not is_retryable(error)
    assert "tidemill recover" in error.fix
    with pytest.raises(PublicationLost, match="gone"), it.running():
        pass


def test_a_publication_that_is_dropped_is_noticed_while_the_log_is_full(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with capturing(it.source, it.directory, limits=Limits(ahead_bytes=0)) as run:
        eventually(lambda: it.source.began, run)
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: run.events == 1, run)
        it.execute("INSERT INTO t VALUES (2)")  # waits until the first is delivered, and nobody delivers
        it.looked()
        it.execute(f"DROP PUBLICATION {it.config.publication_name}")
        eventually(lambda: run.failure)
    assert isinstance(run.failure[0], PublicationLost)


def test_a_publication_that_was_made_anew_is_another_one(watched: Make) -> None:
    it = watched("t", publication="mine", catalog_seconds=3600)
    it.execute(TABLE, "CREATE PUBLICATION mine FOR TABLE t")
    with it.running():
        pass
    it.execute("DROP PUBLICATION mine", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION mine FOR TABLE t")
    with pytest.raises(PublicationLost, match="made anew"), it.running():
        pass


def test_a_recovery_looks_at_the_new_publication_with_new_eyes(watched: Make, tmp_path: Path) -> None:
    it = watched("t")
    it.execute(TABLE, "INSERT INTO t VALUES (1)")
    with it.running():
        it.execute("ALTER TABLE t RENAME TO u", TABLE)
        it.notice("table-incomplete", "public.u")
    it.execute(f"DROP PUBLICATION {it.config.publication_name}")
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    source = PostgresSource(it.config)
    source.renew(schemas)
    assert source.notices() == ()
    it.execute("INSERT INTO t VALUES (2)", f"ALTER PUBLICATION {it.config.publication_name} DROP TABLE t")
    source.open(None, schemas)
    source.close()
    schemas.close()
    assert [n.subject for n in source.notices()] == ["public.t"], "between the recovery and the start"


def test_kinds_that_are_no_longer_published_mark_every_table(watched: Make) -> None:
    it = watched("t", "u")
    it.execute(TABLE, "CREATE TABLE u (id int PRIMARY KEY)")
    name = it.config.publication_name
    with it.running():
        it.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert, update')")
        for table in ("public.t", "public.u"):
            it.notice("table-incomplete", table, "insert, update since")
        partial = it.notice("publication-partial", name)
        assert "delete, truncate" in partial.what
        it.execute(partial.fix.split(": ")[1].rstrip("."))
        eventually(lambda: not it.notices("publication-partial"))
        assert len(it.notices("table-incomplete")) == 2, "what was deleted meanwhile stays unknown"


def test_a_publication_that_is_altered_and_altered_back_unseen_marks_its_tables(
    watched: Make,
) -> None:
    it = watched("t", catalog_seconds=3600)
    it.execute(TABLE)
    with it.running():
        pass
    name = it.config.publication_name
    every = "insert, update, delete, truncate"
    it.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')", "DELETE FROM t",
               f"ALTER PUBLICATION {name} SET (publish = '{every}')")  # fmt: skip
    with it.running():
        it.notice("table-incomplete", "public.t", "altered back")


@pytest.mark.parametrize("change", ["OWNER TO {role}", "SET (publish_generated_columns = none)"])
def test_a_publication_that_is_altered_otherwise_may_have_left_out_kinds_meanwhile(
    watched: Make, database: str, change: str
) -> None:
    role = f"owner_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    it = watched("t")
    it.execute(TABLE, f"CREATE ROLE {role} SUPERUSER")
    with it.running():
        pass
    alter = f"ALTER PUBLICATION {it.config.publication_name}"
    it.execute(f"{alter} SET (publish = 'delete')", "INSERT INTO t VALUES (1)",
               f"{alter} SET (publish = 'insert, update, delete, truncate')",
               f"{alter} {change.format(role=role)}")  # fmt: skip
    with it.running():
        it.notice("table-incomplete", "public.t", "what it left out meanwhile is not known")
    it.execute(f"REASSIGN OWNED BY {role} TO postgres", f"DROP ROLE {role}")


@each_version
def test_a_publication_that_leaves_out_kinds_rows_or_columns_from_the_beginning_is_said_and_not_marked(
    watched: Make,
) -> None:
    it = watched("t", publication="mine")
    it.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
               "CREATE PUBLICATION mine FOR TABLE t (id, a) WHERE (id > 10) WITH (publish = 'insert')")  # fmt: skip
    with it.running():
        it.looked()
        assert {n.code for n in it.notices()} == {"publication-partial", "table-filtered"}
        said = " ".join(n.what for n in it.notices())
        assert "id > 10" in said
        assert "id, a" in said
        checks = [c for c in it.source.doctor() if c.name == "publication"]
        assert [c.outcome for c in checks] == ["warn", "warn", "warn"]


def test_partitions_that_suddenly_come_under_names_of_their_own_stop_the_pipeline(
    watched: Make,
) -> None:
    it = watched("t")
    it.execute(*TREE)
    with it.running() as run:
        it.execute(f"ALTER PUBLICATION {it.config.publication_name} SET (publish_via_partition_root = false)")
        eventually(lambda: run.failure)
    assert isinstance(run.failure[0], SetupError)
    assert "publish_via_partition_root = true" in run.failure[0].fix


def test_a_publication_of_somebody_else_is_watched_and_its_owner_told_what_to_run(
    database: str, tmp_path: Path
) -> None:
    role = f"reader_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, TABLE, f"CREATE ROLE {role} LOGIN REPLICATION",
            "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)")  # fmt: skip
    it = Watched(database.replace("postgres@", f"{role}@"), tmp_path, "public.*", publication="mine")
    with it.running() as run:
        execute(database, "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
        confirmed = it.notice("table-unpublished", "public.u")
        it.looked()
        assert [c.outcome for c in it.source.doctor() if c.name == "publication"] == ["fail"]
        execute(database, confirmed.fix.split(": ")[1].split(". ")[0])
        eventually(lambda: not it.notices("table-unpublished"))
        it.notice("table-incomplete", "public.u", "between")
        execute(database, "INSERT INTO u VALUES (2)")
        eventually(lambda: ids(run, "public.u") == [2], run)
    execute(database, f"DROP ROLE {role}")
