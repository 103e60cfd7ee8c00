"""Partitions that come and go, and replica identities of tables and partitions."""

from __future__ import annotations

import psycopg
import pytest

from tests.sources.postgres.publication.support import TABLE, TREE, Make, each_version, ids
from tests.support.capturing import eventually


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
