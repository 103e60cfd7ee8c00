"""Tables that come, go, move and are renamed while the publication is watched."""

from __future__ import annotations

import psycopg
import pytest

from tests.sources.postgres.publication.support import TABLE, Make, each_version, ids
from tests.support.capturing import eventually
from tidemill.sources.postgres.lsn import parse_lsn


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
