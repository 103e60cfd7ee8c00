"""What triggers cost the programs that write: in steps of SQLite's virtual machine, a write to a large table takes as
many as one to a small table."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.sources.test_sqlite_triggers import assert_copied, set_up
from tidemill.sources.sqlite.limits import find_limits

_FEW, _MANY = 50, 2000
_TREE = "n, p INTEGER REFERENCES t ON DELETE SET NULL"
_PARENTS = "CREATE INDEX parents ON t (p)"
_TABLES = {
    "partial": ("CREATE TABLE t (id INTEGER PRIMARY KEY, u, n)", "CREATE UNIQUE INDEX i ON t (u) WHERE n IS NULL"),
    "partial by its name": (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u, n)",
        "CREATE UNIQUE INDEX i ON t (u) WHERE main.t.n IS NULL AND t.u IS NOT 't.n' AND .5 IS NOT [t].u",
    ),
    "partial of an expression beside another index": (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u, n)",
        "CREATE INDEX b ON t (n)",
        "CREATE UNIQUE INDEX i ON t (lower(u)) WHERE n IS NULL",
    ),
    "partial in a tree": (
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, u, {_TREE})",
        _PARENTS,
        "CREATE UNIQUE INDEX i ON t (u) WHERE p IS NULL",
    ),
    "partial of an expression in a tree": (
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, u, {_TREE})",
        _PARENTS,
        "CREATE UNIQUE INDEX i ON t (lower(u), id) WHERE p IS NULL",
    ),
    "tree without a rowid, key of a collation": (
        "CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, u, n, p TEXT REFERENCES t ON DELETE SET NULL)"
        " WITHOUT ROWID",
        "CREATE INDEX parents ON t (p COLLATE NOCASE)",
    ),
    "text key that a column of numbers refers to": (
        "CREATE TABLE t (id TEXT PRIMARY KEY, u, n) WITHOUT ROWID",
        "CREATE TABLE c (id INTEGER PRIMARY KEY, t INT REFERENCES t)",
        "CREATE INDEX parents ON c (t)",
    ),
}


def _steps(rows: int, tables: tuple[str, ...]) -> dict[str, int]:
    """Of each statement, tens."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        for statement in tables:
            db.execute(statement)
        db.executemany("INSERT INTO t (id, u) VALUES (?, ?)", [(f"{n}", f"U{n}") for n in range(1, rows)])
        set_up(db)
        found = {}
        for statement in (
            f"INSERT INTO t (id, u) VALUES ('{rows}', 'new')",
            "UPDATE t SET n = NULL WHERE id = '7'",
            "UPDATE t SET u = 'other' WHERE id = '8'",
            "REPLACE INTO t (id, u) VALUES ('9', 'new')",
            "DELETE FROM t WHERE id = '10'",
        ):
            taken = [0]

            def count(taken: list[int] = taken) -> int:
                taken[0] += 1
                return 0

            db.set_progress_handler(count, 10)
            db.execute(statement)
            db.set_progress_handler(None, 0)
            found[statement.replace(f"{rows}", "…")] = taken[0]
        return found


@pytest.mark.parametrize("kind", _TABLES)
def test_a_write_to_a_large_table_costs_as_much_as_one_to_a_small_table(kind: str) -> None:
    few, many = _steps(_FEW, _TABLES[kind]), _steps(_MANY, _TABLES[kind])
    grown = {statement: (few[statement], taken) for statement, taken in many.items() if taken > few[statement] + 20}
    assert not grown


def test_rows_that_replace_deletes_by_a_partial_index_are_deletes_however_its_condition_names_columns() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in _TABLES["partial by its name"]:
            db.execute(statement)
        set_up(db)
        db.execute("INSERT INTO t VALUES (1, 'a', NULL), (2, 'a', 1), (3, 'z', NULL)")
        db.execute("REPLACE INTO t VALUES (4, 'a', NULL), (5, 'z', NULL), (6, 'a', 2)")
        assert [row[0] for row in db.execute("SELECT id FROM t ORDER BY id")] == [2, 4, 5, 6]
        assert_copied(db)


def _columns(count: int, declared: str = "") -> str:
    return ", ".join(f"c{n}{declared}" for n in range(count))


def _joined(count: int) -> str:
    return " || ".join(f"coalesce(c{n}, '-')" for n in range(count))


@pytest.mark.parametrize(
    "tables",
    [
        (f"CREATE TABLE t (id INTEGER PRIMARY KEY, p INTEGER REFERENCES t ON DELETE CASCADE, {_columns(988)})",),
        (f"CREATE TABLE t (id INTEGER PRIMARY KEY, {_columns(70)})", f"CREATE UNIQUE INDEX i ON t ({_joined(70)})"),
        (
            f"CREATE TABLE t (id INTEGER PRIMARY KEY, {_columns(70, ' NOT NULL DEFAULT 0')},"
            f" g AS ({_joined(70)}) UNIQUE)",
        ),
        (
            f"CREATE TABLE t (id INTEGER PRIMARY KEY, p INTEGER REFERENCES t ON DELETE CASCADE, {_columns(12)})",
            f"CREATE UNIQUE INDEX i ON t ({_joined(12)})",
        ),
    ],
    ids=["as wide as can be", "expression of many", "generated from many", "expression of many in a tree"],
)
def test_a_table_of_very_many_columns_is_written_to_as_ever(tables: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        for statement in tables:
            db.execute(statement)
        set_up(db)
        assert list(find_limits(db, ())) == []
        db.set_progress_handler(lambda: 1, 1_000_000)
        for statement in (
            "INSERT INTO t (id, c1) VALUES (1, 'a'), (2, 'b')",
            "UPDATE t SET c5 = 'e' WHERE id = 1",
            "UPDATE OR REPLACE t SET c1 = 'a', c5 = 'e' WHERE id = 2",
            "REPLACE INTO t (id, c1, c5) VALUES (3, 'a', 'e')",
        ):
            db.execute(statement)
        assert_copied(db)
        if len(tables) > 1 or "UNIQUE" in tables[0]:
            assert db.execute("SELECT id FROM t").fetchall() == [(3,)]


def test_an_expression_of_too_many_columns_of_a_tree_costs_no_more_and_is_said() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        parent = "p INTEGER REFERENCES t ON DELETE CASCADE"
        db.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {parent}, {_columns(30)})")
        db.execute(f"CREATE UNIQUE INDEX i ON t ({_joined(30)})")
        set_up(db)
        assert [(notice.code, notice.subject) for notice in find_limits(db, ())] == [("replace-unrecorded", "main.t")]
        db.execute("INSERT INTO t (id) VALUES (1)")
        db.execute("INSERT INTO t (id, c1) VALUES (2, 'a')")
        db.set_progress_handler(lambda: 1, 1_000_000)
        db.execute(f"UPDATE t SET {', '.join(f'c{n} = id' for n in range(30))} WHERE id = 1")
        db.execute(f"UPDATE OR REPLACE t SET {', '.join(f'c{n} = 1' for n in range(30))} WHERE id = 2")
        assert db.execute("SELECT id FROM t").fetchall() == [(2,)]
        assert_copied(db)
