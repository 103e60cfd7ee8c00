"""What happens to a publication while the stream stays healthy: each is noticed, and acted on, running or stopped."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.sources.support import config, execute, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.capture.loop import Limits
from tidemill.contracts import Notice
from tidemill.errors import PositionLost, SetupError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Op
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.postgres.errors import PublicationLost
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.publication import watch as watching


class Watched:
    """A pipeline that captures `tables` of a database, runs when it is told to, and is looked at every moment."""

    def __init__(self, dsn: str, directory: Path, *tables: str, **options: Any) -> None:
        self.dsn, self.directory = dsn, directory
        self.config = config(dsn, *tables, **{"catalog_seconds": 0.05} | options)
        self.source = PostgresSource(self.config)

    @contextmanager
    def running(self) -> Iterator[Running]:
        self.source = PostgresSource(self.config)
        with capturing(self.source, self.directory) as run:
            eventually(lambda: self.source.began, run)
            yield run

    def notices(self, code: str = "") -> list[Notice]:
        return [notice for notice in self.source.notices() if code in notice.code]

    def notice(self, code: str, subject: str, words: str = "") -> Notice:
        found = [n for n in self.notices(code) if n.subject == subject and words in n.what]
        assert len(found) <= 1
        return found[0] if found else eventually(lambda: self._notice(code, subject, words))

    def _notice(self, code: str, subject: str, words: str) -> Notice | None:
        return next((n for n in self.notices(code) if n.subject == subject and words in n.what), None)

    def looked(self) -> None:
        """What is so now has been seen: a look that began after this call has ended."""
        seen = self.source._watch
        before = seen.looks
        eventually(lambda: seen.looks >= before + 2)

    def look(self) -> None:
        before = self.source._watch.looks
        self.source._watch.hint()
        eventually(lambda: self.source._watch.looks > before)

    def execute(self, *statements: str) -> None:
        execute(self.dsn, *statements)

    def members(self) -> set[str]:
        return {name for (name,) in query(self.dsn, "SELECT tablename FROM pg_publication_tables")}


Make = Callable[..., Watched]

# Catalogs and watch are the same for every version, the WAL sender is not: what depends on it says so.
each_version = pytest.mark.parametrize("postgres", ["18", "15"], ids=["pg18", "pg15"], indirect=True)


@pytest.fixture(params=["18"], ids=["pg18"])
def postgres(request: pytest.FixtureRequest) -> Postgres:
    server: Postgres = request.getfixturevalue(f"postgres{request.param}")
    return server


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes looks slow, and slow looks rare: not here."""
    monkeypatch.setattr(watching, "_SHARE", 1)


@pytest.fixture
def watched(database: str, tmp_path: Path) -> Make:
    return lambda *tables, **options: Watched(database, tmp_path, *tables, **options)


def ids(run: Running, table: str = "public.t") -> list[int]:
    return [row["after"]["id"] for row in run.rows() if row["table"].endswith(table) and row["op"] == Op.INSERT]


TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
TREE = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
)


# The publication as a whole


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


# Tables that go out and in


@each_version
def test_a_table_that_is_taken_out_comes_back_and_is_marked(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    name = it.config.publication_name
    with it.running() as run:
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: run.events == 1, run)
        it.execute(f"ALTER PUBLICATION {name} DROP TABLE t", "INSERT INTO t VALUES (2)")
        mark = it.notice("table-incomplete", "public.t", "taken out")
        eventually(lambda: it.members() == {"t"})
        it.looked()
        it.execute("INSERT INTO t VALUES (3)")
        eventually(lambda: 3 in ids(run), run)
        assert "tidemill recover FILE --table public.t" in mark.fix
        since, until = (parse_lsn(word) for word in mark.what.split() if word.count("/") == 1)
        assert since < until


def test_a_table_that_goes_out_and_in_between_two_looks_is_marked(watched: Make) -> None:
    it = watched("t", catalog_seconds=3600)
    it.execute(TABLE)
    name = it.config.publication_name
    with it.running():
        pass
    it.execute(f"ALTER PUBLICATION {name} DROP TABLE t", "INSERT INTO t VALUES (1)",
               f"ALTER PUBLICATION {name} ADD TABLE t")  # fmt: skip
    with it.running():
        it.notice("table-incomplete", "public.t", "taken out of the publication and put back")


def test_a_row_filter_and_a_column_list_that_come_later_mark_the_table(watched: Make) -> None:
    it = watched("t")
    it.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    name = it.config.publication_name
    with it.running():
        it.execute(f"ALTER PUBLICATION {name} SET TABLE t WHERE (id > 10)")
        it.notice("table-incomplete", "public.t", "the row filter is (id > 10) since")
        it.notice("table-filtered", "public.t", "id > 10")
        it.execute(f"ALTER PUBLICATION {name} SET TABLE t (id)")
        it.notice("table-incomplete", "public.t", "the column list is id since")
        it.notice("table-filtered", "public.t", "columns")
        it.execute(f"ALTER PUBLICATION {name} SET TABLE t")
        eventually(lambda: not it.notices("table-filtered"))
        it.notice("table-incomplete", "public.t", "the column list was removed")


@each_version
def test_a_table_that_is_dropped_and_made_again_is_captured_from_its_first_row(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run:
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: run.events == 1, run)
        it.execute("DROP TABLE t", TABLE)
        eventually(lambda: it.members() == {"t"})
        it.looked()  # and was found empty
        it.execute("INSERT INTO t VALUES (2)")
        eventually(lambda: ids(run) == [1, 2], run)
        it.notice("table-dropped", "public.t")
        assert it.notices("table-incomplete") == []


def test_a_table_that_is_made_again_with_rows_in_it_is_marked(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run:
        with psycopg.connect(it.dsn) as db:
            db.execute("DROP TABLE t")
            db.execute(TABLE.encode())
            db.execute("INSERT INTO t VALUES (2)")
        it.notice("table-incomplete", "public.t", "had rows")
        it.execute("INSERT INTO t VALUES (3)")
        eventually(lambda: 3 in ids(run), run)
        assert ids(run) == [3]


def test_a_table_that_was_dropped_is_said_and_the_pipeline_starts_without_it(watched: Make) -> None:
    it = watched("t", "gone")
    it.execute(TABLE, "CREATE TABLE gone (id int PRIMARY KEY)")
    with it.running():
        it.execute("DROP TABLE gone")
        it.notice("table-dropped", "public.gone")
        it.notice("pattern-unmatched", "gone")
    with it.running() as run:
        it.notice("table-dropped", "public.gone")
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: ids(run) == [1], run)


@each_version
def test_a_pipeline_that_matches_nothing_yet_waits_and_captures_the_first_row(watched: Make) -> None:
    it = watched("shop.*")
    with it.running() as run:
        it.notice("pattern-unmatched", "shop.*")
        it.execute("CREATE SCHEMA shop", "CREATE TABLE shop.a (id int PRIMARY KEY)")
        eventually(lambda: it.members() == {"a"})
        it.looked()
        assert it.notices() == []
        it.execute("INSERT INTO shop.a VALUES (1)")
        eventually(lambda: ids(run, "shop.a") == [1], run)


def test_a_new_table_without_a_key_gets_an_identity_before_it_is_published(watched: Make) -> None:
    it = watched("public.*")
    with it.running() as run:
        it.execute("CREATE TABLE n (id int)")
        eventually(lambda: it.members() == {"n"})
        it.looked()  # and was found empty
        it.execute("INSERT INTO n VALUES (1)", "UPDATE n SET id = 2", "DELETE FROM n")
        eventually(lambda: run.events >= 3, run)
        assert it.notices() == []


def test_a_table_that_joins_with_rows_while_the_pipeline_is_down_is_marked(watched: Make) -> None:
    it = watched("public.*")
    it.execute(TABLE)
    with it.running():
        pass
    it.execute("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)",
               "CREATE TABLE empty (id int PRIMARY KEY)")  # fmt: skip
    with it.running():
        it.looked()
        assert [(n.code, n.subject) for n in it.notices()] == [("table-incomplete", "public.u")]
        assert it.members() == {"t", "u", "empty"}


def test_a_table_that_was_written_and_truncated_before_it_joined_is_marked(watched: Make) -> None:
    it = watched("public.*")
    with it.running():
        pass
    it.execute(TABLE, "INSERT INTO t VALUES (1)", "TRUNCATE t")
    with it.running():
        it.notice("table-incomplete", "public.t")


def test_a_publication_of_all_tables_has_a_new_one_from_its_first_row(watched: Make) -> None:
    it = watched("public.*", publication="mine")
    it.execute(TABLE, "CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root = true)")
    with it.running() as run:
        it.looked()
        with psycopg.connect(it.dsn) as db:
            db.execute("CREATE TABLE u (id int PRIMARY KEY)")
            db.execute("INSERT INTO u VALUES (1)")
        eventually(lambda: ids(run, "public.u") == [1], run)
        it.looked()
        assert it.notices() == []
        it.execute("CREATE UNLOGGED TABLE v (id int PRIMARY KEY)", "INSERT INTO v VALUES (1)")
        it.looked()
        it.execute("ALTER TABLE v SET LOGGED")
        it.notice("table-incomplete", "public.v")


def test_a_table_that_is_moved_into_a_published_schema_is_marked(watched: Make) -> None:
    it = watched("shop.*", publication="mine")
    it.execute("CREATE SCHEMA shop", "CREATE TABLE moved (id int PRIMARY KEY)", "INSERT INTO moved VALUES (1)",
               "CREATE PUBLICATION mine FOR TABLES IN SCHEMA shop WITH (publish_via_partition_root)")  # fmt: skip
    with it.running():
        it.execute("CREATE TABLE shop.born (id int PRIMARY KEY)", "INSERT INTO shop.born VALUES (1)")
        it.looked()
        assert it.notices("table") == []
        it.execute("ALTER TABLE moved SET SCHEMA shop")
        it.notice("table-incomplete", "shop.moved")
        it.execute(
            "ALTER PUBLICATION mine DROP TABLES IN SCHEMA shop", "ALTER PUBLICATION mine ADD TABLES IN SCHEMA shop"
        )
        it.notice("table-incomplete", "shop.born")


def test_a_renamed_table_is_marked_under_its_new_name(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE, "INSERT INTO t VALUES (1)")
    with it.running() as run:
        it.execute("ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2)")
        it.notice("table-incomplete", "public.u", "it was called public.t")
        eventually(lambda: ids(run, "public.u") == [2], run)


NAMED_AGAIN = {
    "renamed": ("ALTER TABLE app.t RENAME TO u", "INSERT INTO app.u VALUES (1)", "ALTER TABLE app.u RENAME TO t"),
    "moved": (
        "ALTER TABLE app.t SET SCHEMA public",
        "INSERT INTO public.t VALUES (1)",
        "ALTER TABLE public.t SET SCHEMA app",
    ),
}


@pytest.mark.parametrize("statements", NAMED_AGAIN.values(), ids=NAMED_AGAIN.keys())
def test_a_table_that_goes_and_comes_back_under_its_name_unseen_is_marked(
    watched: Make, statements: tuple[str, ...]
) -> None:
    it = watched("app.*", publication="mine")
    it.execute("CREATE SCHEMA app", "CREATE TABLE app.t (id int PRIMARY KEY)",
               "CREATE PUBLICATION mine FOR TABLES IN SCHEMA app WITH (publish_via_partition_root)")  # fmt: skip
    with it.running():
        pass
    it.execute(*statements)
    with it.running():
        it.notice("table-incomplete", "app.t", "it had another name or schema meanwhile")


def test_what_is_done_to_tables_every_day_marks_none(watched: Make, database: str) -> None:
    role = f"other_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    it = watched("public.*", publication="mine")
    it.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a')", f"CREATE ROLE {role}",
               "CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root)")  # fmt: skip
    with it.running():
        pass
    with psycopg.connect(it.dsn) as db:
        db.execute("DROP TABLE t")
        db.rollback()
    it.execute(f"GRANT SELECT ON t TO {role}", "ANALYZE t", "VACUUM t", "VACUUM FULL t", "CREATE INDEX ON t (a)",
               "ALTER TABLE t ADD COLUMN b int", "ALTER TABLE t ALTER id TYPE bigint", "COMMENT ON TABLE t IS 'x'",
               "TRUNCATE t", "INSERT INTO t VALUES (2)", "CLUSTER t USING t_pkey", "REINDEX TABLE t",
               f"ALTER TABLE t OWNER TO {role}", "ALTER TABLE t ADD UNIQUE (b)",
               "CREATE TABLE new (id serial PRIMARY KEY, a text)", "INSERT INTO new (a) VALUES ('x')",
               f"GRANT SELECT ON new TO {role}", "ANALYZE new", "VACUUM new", "CREATE INDEX ON new (a)",
               "ALTER TABLE new ADD COLUMN b int", "CREATE TABLE taken AS SELECT 1 AS id",
               "CREATE TABLE tree (id int) PARTITION BY LIST (id)", "CREATE TABLE tree1 PARTITION OF tree DEFAULT",
               "INSERT INTO tree VALUES (1)")  # fmt: skip
    with it.running():
        it.looked()
        assert it.notices("table-incomplete") == []
    it.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


NOT_BORN_SO = {
    "unlogged": (
        "CREATE UNLOGGED TABLE app.t (id int)",
        "INSERT INTO app.t VALUES (1)",
        "ALTER TABLE app.t SET LOGGED",
    ),
    "elsewhere": ("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "ALTER TABLE t SET SCHEMA app"),
    "under another name": (
        "CREATE TABLE app.u (id int)",
        "INSERT INTO app.u VALUES (1)",
        "ALTER TABLE app.u RENAME TO t",
    ),
}


@pytest.mark.parametrize("together", [False, True], ids=["step by step", "in one transaction"])
@pytest.mark.parametrize("statements", NOT_BORN_SO.values(), ids=NOT_BORN_SO.keys())
@pytest.mark.parametrize("route", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA app"])
def test_a_new_table_that_was_not_born_as_it_is_now_is_marked(
    watched: Make, statements: tuple[str, ...], together: bool, route: str
) -> None:
    it = watched("app.*", publication="mine", replica_identity="keep")
    it.execute("CREATE SCHEMA app", f"CREATE PUBLICATION mine {route} WITH (publish_via_partition_root)")
    with it.running():
        pass
    with psycopg.connect(it.dsn, autocommit=not together) as db:
        for statement in statements:
            db.execute(statement.encode())
    with it.running():
        it.notice("table-incomplete", "app.t", "had rows")


def test_a_table_that_is_unlogged_is_marked_until_it_is_logged_again(watched: Make) -> None:
    it = watched("public.*", publication="mine")
    it.execute(TABLE, "CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root)")
    with it.running():
        it.execute("ALTER TABLE t SET UNLOGGED")
        it.notice("table-incomplete", "public.t", "not logged any more")
        it.execute("ALTER TABLE t SET LOGGED")
        it.notice("table-incomplete", "public.t", " and ")


# Partitions


@each_version
def test_a_partition_that_is_made_as_one_is_no_gap_with_rows_or_without(watched: Make) -> None:
    it = watched("t")
    it.execute(*TREE)
    with it.running():
        pass
    it.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)", "INSERT INTO t VALUES (11)",
               "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)",
               "CREATE TABLE t3a PARTITION OF t3 DEFAULT", "INSERT INTO t VALUES (21)")  # fmt: skip
    with it.running() as run:
        eventually(lambda: sorted(ids(run)) == [11, 21], run)
        it.looked()
        assert it.notices() == []


FILLED = ("CREATE TABLE t2 (LIKE t INCLUDING ALL)", "INSERT INTO t2 VALUES (11)",
          "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)")  # fmt: skip
MADE = {
    "step by step": FILLED,
    "in one transaction": (";".join(("BEGIN", *FILLED, "COMMIT")),),
    "in a savepoint": (
        ";".join(("BEGIN", FILLED[0], "SAVEPOINT s", FILLED[1], "RELEASE SAVEPOINT s", FILLED[2], "COMMIT")),
    ),
    "and updated since": (";".join(("BEGIN", *FILLED, "COMMIT")), "UPDATE t SET id = 12 WHERE id = 11"),
    "as an unlogged one": (
        "CREATE UNLOGGED TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t2 VALUES (11)",
        "ALTER TABLE t2 SET LOGGED",
    ),
}


@each_version
@pytest.mark.parametrize("statements", MADE.values(), ids=MADE.keys())
def test_a_partition_that_is_attached_with_rows_marks_the_table(watched: Make, statements: tuple[str, ...]) -> None:
    it = watched("t")
    it.execute(*TREE)
    with it.running():
        pass
    it.execute(*statements)
    with it.running():
        it.notice("table-incomplete", "public.t", "t2 was attached with rows")


def test_a_partition_that_is_attached_empty_is_no_gap(watched: Make) -> None:
    it = watched("t")
    it.execute(*TREE)
    with it.running() as run:
        it.execute("CREATE TABLE t2 (LIKE t INCLUDING ALL)")
        it.execute("ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)")
        it.looked()
        it.execute("INSERT INTO t VALUES (11)")
        eventually(lambda: ids(run) == [11], run)
        assert it.notices() == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [("ALTER TABLE t DETACH PARTITION t1", "was detached"), ("DROP TABLE t1", "was dropped")],
)
def test_a_partition_that_leaves_marks_the_table(watched: Make, statement: str, words: str) -> None:
    it = watched("t")
    it.execute(*TREE, "INSERT INTO t VALUES (1)")
    with it.running():
        it.execute(statement)
        it.notice("table-incomplete", "public.t", words)


def test_a_partition_that_is_detached_and_attached_between_two_looks_marks_the_table(
    watched: Make,
) -> None:
    it = watched("t")
    it.execute(*TREE, "INSERT INTO t VALUES (1)")
    with it.running():
        pass
    it.execute("ALTER TABLE t DETACH PARTITION t1", "INSERT INTO t1 VALUES (2)",
               "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (10)")  # fmt: skip
    with it.running():
        it.notice("table-incomplete", "public.t", "detached and attached again")


# Replica identities


KEYLESS = (
    "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
)
NEW_PARTITION = "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)"


def test_a_new_partition_that_was_locked_gets_its_identity_when_the_lock_is_gone(watched: Make) -> None:
    it = watched("t", catalog_seconds=3600, lock_timeout_seconds=0.2)  # looks when it is told to
    it.execute(*KEYLESS)
    with it.running() as run:
        it.execute(NEW_PARTITION)
        with psycopg.connect(it.dsn) as other:
            other.execute("LOCK TABLE t2 IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM does
            it.look()
            confirmed = it.notice("table-without-identity", "public.t2", "updates and deletes fail")
            assert 'ALTER TABLE "public"."t2" REPLICA IDENTITY FULL' in confirmed.fix
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                it.execute("UPDATE t SET id = 12 WHERE id = 11")
        it.look()
        assert it.notices() == []
        it.execute("INSERT INTO t VALUES (11)", "UPDATE t SET id = 12 WHERE id = 11")
        eventually(lambda: run.events == 2, run)


def test_a_table_whose_key_is_dropped_can_still_be_updated(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE, "INSERT INTO t VALUES (1)")
    with it.running() as run:
        it.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        it.looked()
        it.execute("UPDATE t SET id = 2")
        eventually(lambda: run.events >= 1, run)
        assert it.notices() == []


def test_a_partition_whose_identity_is_left_alone_is_said_with_what_to_run(watched: Make) -> None:
    it = watched("t", replica_identity="keep")
    it.execute(*KEYLESS, "ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t1 REPLICA IDENTITY FULL")
    with it.running():
        it.looked()
        assert it.notices() == []
        it.execute(NEW_PARTITION)
        confirmed = it.notice("table-without-identity", "public.t2")
        it.execute(confirmed.fix.split(": ")[1].split("; ")[0])
        eventually(lambda: not it.notices())


# Who may do what, and the way out


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
        it.looked()
        assert [(n.code, n.subject) for n in it.notices()] == [("table-incomplete", "public.u")]


def test_tables_that_are_locked_are_added_later_and_hold_up_neither_others_nor_looks(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_SHARE", 20)
    it = watched("public.*")
    locked = {f"u{number}" for number in range(4)}
    it.execute(TABLE)
    with it.running() as run:
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: run.events == 1, run)  # from here on only the watch adds tables
    it.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in locked), "CREATE TABLE v (id int PRIMARY KEY)")
    with psycopg.connect(it.dsn) as other:
        other.execute(f"LOCK TABLE {', '.join(locked)} IN SHARE MODE".encode())
        with it.running():
            assert it.members() == {"t", "v"}
            it.looked()
            assert {n.subject for n in it.notices("table-unpublished")} == {f"public.{name}" for name in locked}
            other.commit()
            eventually(lambda: it.members() == {"t", "v", *locked})


def test_a_look_that_waits_for_ever_does_not_hold_up_the_stream_or_its_end(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run, psycopg.connect(it.dsn) as other:
        it.looked()
        other.execute("LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE")
        it.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
        eventually(lambda: run.events == 1, run)
        run.stop.set()
        eventually(lambda: it.source._watch._thread is None)


def test_a_catalog_that_cannot_be_read_for_a_while_does_not_end_a_healthy_stream(watched: Make) -> None:
    it = watched("t", lock_timeout_seconds=0.1)
    it.execute(TABLE)
    with it.running() as run:
        it.looked()
        with psycopg.connect(it.dsn) as other:
            other.execute("LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE")
            failed = it.source._watch.failed_looks
            eventually(lambda: it.source._watch.failed_looks > failed + 1, run)
            it.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
            eventually(lambda: run.events == 1, run)
        it.execute("CREATE TABLE u (id int PRIMARY KEY)")
        it.looked()
        assert not run.failure


def broken_comparison(*arguments: Any) -> None:
    raise KeyError("leaf")


def test_a_look_that_breaks_is_a_failed_look_and_the_next_one_is_made(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched("public.*")
    with it.running() as run:
        with monkeypatch.context() as broken:
            broken.setattr(watching, "Comparison", broken_comparison)
            broken.setattr(watching, "_BLIND_SECONDS", 0.0)
            it.execute(TABLE)
            it.notice("catalog-unwatched", it.config.publication_name, "KeyError: 'leaf'")
            failed = it.source._watch.failed_looks
            eventually(lambda: it.source._watch.failed_looks > failed, run)
        it.looked()
        assert it.notices() == []
        assert it.members() == {"t"}
        assert not run.failure


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_has_ended_begins_again_with_the_next_connection(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run:
        look, ends = it.source._watch._look, iter([True])
        monkeypatch.setattr(it.source._watch, "_look", lambda *given: sys.exit() if next(ends, False) else look(*given))
        eventually(lambda: run.last_error, run)
        assert "the thread that watches the publication has ended" in run.last_error[0].what
        it.looked()


class Recorded(threading.Event):
    """Nobody waits for it; how long they would have is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def test_a_stream_that_hints_all_the_time_does_not_take_more_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_SHARE", 20)
    monkeypatch.setattr(watching, "connect", lambda config: SimpleNamespace(close=lambda: None))
    watch, stop = watching.PublicationWatch(config("dbname=none", catalog_seconds=3600)), Recorded()
    reading = iter([0.5, 0.25, 3600.0, 0.0])

    def look(db: Any, stop: threading.Event) -> None:
        watch._reading_seconds = next(reading)
        watch.hint()
        if not watch._reading_seconds:
            stop.set()

    monkeypatch.setattr(watch, "_look", look)
    watch.hint()
    watch._run(stop)
    assert stop.waits == [0.0, 10.0, 5.0, 30.0]


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
