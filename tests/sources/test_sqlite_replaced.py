"""Which rows REPLACE deletes without a word, by keys that are computed, and notes of changes that did not happen."""

from __future__ import annotations

import pytest

from tests.sources.test_sqlite_triggers import assert_copied, originals, recorded, run, set_up
from tidemill.sources.sqlite.limits import find_limits
from tidemill.sources.sqlite.resume import last_number
from tidemill.sources.sqlite.triggers import CHANGES, DELETE, REPLACED


@pytest.mark.parametrize(
    "index", ["g AS (a || b) UNIQUE", "g AS (a || b), UNIQUE (g, a)", "g AS (a || b)", "g INT AS (a || b)"]
)
def test_rows_that_replace_deletes_by_a_column_made_of_what_a_trigger_changes_before_are_deletes(index: str) -> None:
    with recorded(
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, {index})",
        *([] if "UNIQUE" in index else ["CREATE UNIQUE INDEX i ON t (g || '-')"]),
        "CREATE TRIGGER z BEFORE UPDATE ON t WHEN NEW.b <> '08' BEGIN UPDATE t SET b = '08' WHERE id = OLD.id; END",
    ) as db:
        run(db, "INSERT INTO t (id, a, b) VALUES (1, '01', '07'), (2, '02', '08')")
        run(db, "UPDATE OR REPLACE t SET a = '02' WHERE id = 1")
        assert db.execute("SELECT id, a, b FROM t").fetchall() == [(1, "02", "08")]
        assert_copied(db)


def test_a_generated_column_with_a_type_is_known_where_replace_puts_a_default_into_what_it_is_made_of() -> None:
    with recorded(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a NOT NULL DEFAULT '01', g INT AS (a || ''))",
        "CREATE UNIQUE INDEX i ON t (g || '-')",
    ) as db:
        run(db, "INSERT INTO t (id, a) VALUES (1, '1')")
        run(db, "REPLACE INTO t (id, a) VALUES (2, NULL)")
        assert [id for ((_, id), *_) in originals(db)["t"]] == [2]
        assert_copied(db)


@pytest.mark.parametrize("sign", ["€", "😀", "\u00a0"])
def test_names_of_signs_that_are_no_letters_are_names_without_quotes_too(sign: str) -> None:
    """To SQLite all that is not ASCII is part of a name, a no-break space too."""
    with recorded(
        f"CREATE TABLE t{sign} (id INTEGER PRIMARY KEY, a{sign} NOT NULL DEFAULT 5, b{sign} AS (a{sign} + 1) UNIQUE)",
        f"CREATE TRIGGER g BEFORE INSERT ON t{sign} BEGIN INSERT INTO z{sign} VALUES (NEW.id); END",
        f"CREATE TABLE z{sign} (id INTEGER PRIMARY KEY)",
        f"CREATE TRIGGER h AFTER INSERT ON z{sign} BEGIN UPDATE t{sign} SET a{sign} = a{sign} + 1; END",
    ) as db:
        run(db, f"INSERT INTO t{sign} (id, a{sign}) VALUES (1, 3)")
        run(db, f"INSERT INTO t{sign} (id, a{sign}) VALUES (2, 9)")
        run(db, f"REPLACE INTO t{sign} (id, a{sign}) VALUES (3, NULL)")
        run(db, f"REPLACE INTO t{sign} (id, a{sign}) VALUES (4, 10)")
        run(db, f"REPLACE INTO t{sign} (id, a{sign}) VALUES (3, 11)")
        assert_copied(db)


@pytest.mark.parametrize(
    "expression",
    [
        "CASE a WHEN 1 THEN b END",
        "CASE 'x' WHEN a THEN b END",
        "max(a, 'L')",
        "min(a, 'L')",
        "coalesce(nullif(a, 'X'), 1)",
    ],
)
def test_an_index_that_compares_without_a_sign_for_it_is_said_to_miss_rows(expression: str) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT COLLATE NOCASE, b)"
    with recorded(table, f"CREATE UNIQUE INDEX i ON t ({expression})") as db:
        assert [notice.code for notice in find_limits(db, ())] == ["replace-unrecorded"]


@pytest.mark.parametrize("made", ["g AS (CASE WHEN a = 1 THEN b END) UNIQUE", "h AS (a = 1), g AS (h || b) UNIQUE"])
def test_a_comparison_in_a_generated_column_is_said_where_triggers_must_compute_it(made: str) -> None:
    for a, said in (("a TEXT NOT NULL DEFAULT '1'", ["replace-unrecorded"]), ("a TEXT", [])):
        with recorded(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {a}, b, {made})") as db:
            assert [notice.code for notice in find_limits(db, ())] == said


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY", "INT", "TEXT PRIMARY KEY"])
def test_changes_that_were_ignored_leave_no_note_behind(key: str) -> None:
    """Else each row of a statement reads the notes of those before it, and the next statement takes one for its own."""
    keep = "BEGIN SELECT RAISE(IGNORE); END"
    with recorded(
        f"CREATE TABLE t (id {key}, parent REFERENCES t (u) ON DELETE CASCADE, u UNIQUE, kept)",
        f"CREATE TRIGGER d BEFORE DELETE ON t WHEN OLD.kept {keep}",
        f"CREATE TRIGGER u BEFORE UPDATE ON t WHEN OLD.kept {keep}",
    ) as db:
        run(db, f"INSERT INTO t VALUES {', '.join(f'({n}, NULL, {n}, {n % 2})' for n in range(100))}")
        for statement in (
            "UPDATE OR IGNORE t SET u = 0",
            "UPDATE t SET parent = 1 WHERE kept",
            "DELETE FROM t WHERE kept",
        ):
            run(db, statement)
            assert db.execute(f"SELECT count(*) FROM {REPLACED}").fetchone()[0] <= 3, statement
        run(db, "REPLACE INTO t VALUES (1, NULL, 1, 1)")
        (gone,) = db.execute(f"SELECT count(*) FROM {CHANGES} WHERE op = {DELETE} AND v2 = 1").fetchone()
        assert gone == 1
        assert_copied(db)


_CHILDREN = "(0, 'r', NULL), (1, 'a', NULL), (2, 'b', 1), (4, 'd', 1), (3, 'c', NULL), (5, 'e', 3)"


@pytest.mark.parametrize("action", ["SET NULL", "SET DEFAULT", "CASCADE"])
@pytest.mark.parametrize(
    "statement",
    [
        "REPLACE INTO z (id, u) VALUES (1, 'c')",
        "UPDATE OR REPLACE z SET id = 1, u = 'c' WHERE id = 0",
        "REPLACE INTO z (id, u) VALUES (1, 'c'), (7, 'b'), (8, 'e'), (1, 'e')",
    ],
)
def test_each_of_several_rows_that_replace_deletes_is_a_delete_though_foreign_keys_change_others_between(
    statement: str, action: str
) -> None:
    """What a foreign key does to the children of the first runs triggers before the second is deleted."""
    with recorded(
        "PRAGMA foreign_keys = ON",
        f"CREATE TABLE z (id INTEGER PRIMARY KEY, u UNIQUE, p INTEGER DEFAULT NULL REFERENCES z ON DELETE {action})",
    ) as db:
        assert not run(db, f"INSERT INTO z (id, u, p) VALUES {_CHILDREN}")
        assert not run(db, statement)
        assert_copied(db)
        assert db.execute(f"SELECT count(*) FROM {REPLACED}").fetchone() == (0,)


@pytest.mark.parametrize(
    ("made", "rows", "statement"),
    [
        (
            ("CREATE TABLE z (id INTEGER PRIMARY KEY, u INTEGER DEFAULT 0 UNIQUE REFERENCES z ON DELETE SET DEFAULT)",),
            "(0, NULL), (1, NULL), (2, 1)",
            "REPLACE INTO z VALUES (1, 0)",
        ),
        (
            (
                "CREATE TABLE z (id INTEGER PRIMARY KEY, u, p INTEGER REFERENCES z ON DELETE SET NULL)",
                "CREATE UNIQUE INDEX i ON z (u) WHERE p IS NULL",
            ),
            "(0, 'r', NULL), (1, 'a', NULL), (2, 'b', 1), (3, 'd', 1), (4, 'c', 1)",
            "REPLACE INTO z VALUES (1, 'c', NULL)",
        ),
        (
            (
                "CREATE TABLE z (id INTEGER PRIMARY KEY, u UNIQUE)",
                "CREATE TABLE c (p INTEGER REFERENCES z ON DELETE CASCADE)",
                "CREATE TRIGGER g AFTER DELETE ON c BEGIN INSERT INTO z VALUES (11, 'x'), (12, 'y'); END",
                "CREATE TRIGGER h AFTER INSERT ON z WHEN NEW.id < 10 BEGIN INSERT INTO c VALUES (NEW.id); END",
            ),
            "(1, 'a'), (2, 'b')",
            "REPLACE INTO z VALUES (1, 'y')",
        ),
    ],
)
def test_a_row_that_a_foreign_key_brings_into_the_way_of_replace_is_a_delete(
    made: tuple[str, ...], rows: str, statement: str
) -> None:
    with recorded("PRAGMA foreign_keys = ON", *made) as db:
        assert not run(db, f"INSERT INTO z VALUES {rows}")
        assert not run(db, statement)
        assert_copied(db)


@pytest.mark.parametrize(("was", "copied"), [("WHERE n IS NULL", {"t"}), ("WHERE n IS 1", set()), ("", set())])
def test_a_partial_index_with_another_condition_is_another_index(was: str, copied: set[str]) -> None:
    """What it lets REPLACE delete until the triggers know it was noted only if the one before had these rows."""
    with recorded("CREATE TABLE t (id INTEGER PRIMARY KEY, u, n)", f"CREATE UNIQUE INDEX i ON t (u) {was}") as db:
        run(db, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', NULL)")
        seen = last_number(db)
        run(db, "DROP INDEX i")
        run(db, "CREATE UNIQUE INDEX j ON t (u) WHERE n IS 1")
        run(db, "REPLACE INTO t VALUES (3, 'a', 1)")
        assert db.execute("SELECT id FROM t").fetchall() == [(2,), (3,)]
        assert set(set_up(db, seen=seen, recopy_rows=10).copied) == copied
        assert_copied(db)
