"""What triggers record, without capture: replayed as a destination does it, it is the table, whatever the statements
were. SQLite itself is the judge."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.sources.sqlite_statements import RandomSchema
from tests.support.seed import run_seed
from tidemill.sources._shared.sqlite_catalog import quote
from tidemill.sources.sqlite.limits import find_limits
from tidemill.sources.sqlite.resume import last_number
from tidemill.sources.sqlite.setup import SetupRequest, install
from tidemill.sources.sqlite.triggers import CHANGES, DDL, DELETE, INSERT, SHAPES, TRUNCATE

Row = tuple[tuple[str, Any], ...]

_CASES = 100
_ADDED = {"5": "5", "'d'": "d"}  # what a TEXT column with such a default has in older rows
_MOST_CHANGES = 600  # triggers that multiply rows make others wait


@contextmanager
def recorded(*statements: str) -> Iterator[sqlite3.Connection]:
    """A database with these tables, whose changes are recorded."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        set_up(db)
        yield db


def set_up(db: sqlite3.Connection, **settings: Any) -> Any:
    db.execute("BEGIN IMMEDIATE")
    report = install(db, SetupRequest("reader", (), **{"seen": None, "where": "test", **settings}))
    db.execute("COMMIT")
    return report


def copies(db: sqlite3.Connection) -> dict[str, Counter[Row]]:
    """Tables as their recorded changes make them: by their keys, or row by row where there is none."""
    shapes = {number: orjson.loads(text) for number, text in db.execute(f"SELECT shape, document FROM {SHAPES}")}
    keyed: dict[str, dict[Row, Row]] = {shape["name"]: {} for shape in shapes.values()}
    bare: dict[str, Counter[Row]] = {shape["name"]: Counter() for shape in shapes.values()}
    for _, number, op, _, *values in db.execute(f"SELECT * FROM {CHANGES} ORDER BY change_id"):
        shape = shapes[number]
        count, rows, more = len(shape["columns"]), keyed[shape["name"]], bare[shape["name"]]
        if op == TRUNCATE:
            rows.clear()
            more.clear()
            continue
        if op == DDL:  # columns were added: rows that were there have their defaults
            added = exact([_ADDED.get(column["default"]) for column in shape["columns"]])
            for key, row in rows.items():
                rows[key] = row + added[len(row) :]
            whole = Counter({row + added[len(row) :]: times for row, times in more.items()})
            more.clear()
            more.update(whole)
            continue
        old, new = exact(values[:count]), exact(values[count : 2 * count])
        if op == INSERT:
            old, new = (), old
        gone, came = ([] if op == INSERT else [old]), ([] if op == DELETE else [new])
        if not key_of(shape, new or old):
            more.subtract(gone)
            more.update(came)
            continue
        for row in gone:
            rows.pop(key_of(shape, row), None)
        for row in came:
            rows[key_of(shape, row)] = row
    return {name: Counter(keyed[name].values()) + bare[name] for name in keyed}


def originals(db: sqlite3.Connection) -> dict[str, Counter[Row]]:
    found = {}
    for (text,) in db.execute(f"SELECT document FROM {SHAPES} WHERE current").fetchall():
        shape = orjson.loads(text)
        columns = ", ".join(quote(column["name"]) for column in shape["columns"])
        rows = [exact(row) for row in db.execute(f"SELECT {columns} FROM {quote(shape['name'])}")]
        keys = [key_of(shape, row) for row in rows]
        if not any(value is None for key in keys for _, value in key):  # NULLs are told apart by nothing
            found[shape["name"]] = Counter(rows)
    return found


def exact(values: Sequence[Any]) -> Row:
    """1, 1.0 and '1' are different values."""
    return tuple((type(value).__name__, value) for value in values)


def key_of(shape: dict[str, Any], row: Row) -> Row:
    return tuple(row[i] for i, column in enumerate(shape["columns"]) if column["key"])


def assert_copied(db: sqlite3.Connection, what: object = "", besides: Collection[str] = ()) -> None:
    there, here = originals(db), copies(db)
    assert {n: here[n] for n in there if n not in besides} == {n: there[n] for n in there if n not in besides}, what


def run(db: sqlite3.Connection, statement: str) -> str:
    """What SQLite says of it, if it refuses. One that takes too long is interrupted, at the same place every time."""
    db.set_progress_handler(lambda: 1, 300_000)
    refused = ""
    try:
        db.execute(statement)
    except sqlite3.Error as error:
        refused = str(error)
    finally:
        db.set_progress_handler(None, 0)
    assert "_tidemill" not in refused, statement
    return refused


def made_schema(dice: Random, triggers: int, path: str) -> tuple[sqlite3.Connection, RandomSchema]:
    """The first that SQLite takes."""
    while True:
        schema = RandomSchema(dice, triggers=triggers)
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        if not any(run(db, statement) for statement in schema.statements):
            db.execute("COMMIT")
            return db, schema
        db.close()


def open_writer(dice: Random, db: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """The connection itself; where there is a file, another one that has attached it beside a database of its own."""
    writer = db
    if path != ":memory:":
        writer = sqlite3.connect(":memory:", isolation_level=None)
        writer.execute("ATTACH ? AS beside", [path])
    writer.execute(f"PRAGMA recursive_triggers = {dice.choice(('ON', 'OFF', 'OFF'))}")
    writer.execute(f"PRAGMA foreign_keys = {dice.choice(('ON', 'ON', 'OFF'))}")
    return writer


def random_statement(db: sqlite3.Connection, schema: RandomSchema, dice: Random) -> str:
    kind = dice.random()
    if kind < 0.06:
        return dice.choice(("COMMIT", "ROLLBACK")) if db.in_transaction else "BEGIN"
    if kind < 0.1 and db.in_transaction:
        return dice.choice(("SAVEPOINT a", "ROLLBACK TO a", "RELEASE a"))
    if kind < 0.115 and not db.in_transaction:
        return dice.choice(("VACUUM", "VACUUM beside"))
    return schema.setting() if kind < 0.13 else schema.statement()


def told_tables(db: sqlite3.Connection) -> set[str]:
    """Those of which `doctor` says that changes may be missed."""
    return {notice.subject.removeprefix("main.") for notice in find_limits(db, ())}


def attack(seed: int, triggers: int, path: str = ":memory:", *, changing: bool = False) -> int:
    """Random statements in a random schema, compared after each. How many changes were recorded. With `changing`, the
    schema changes too, and the triggers follow it some statements later."""
    dice = Random(f"{seed}/{triggers}/{changing}")
    db, schema = made_schema(dice, triggers, path)
    writer = open_writer(dice, db, path)
    changes, seen = 0, None
    with closing(db), closing(writer):
        set_up(db)
        log, told = list(schema.statements), told_tables(db)
        for _ in range(dice.choice((5, 15, 30))):
            statement = random_statement(writer, schema, dice)
            if changing and dice.random() < 0.1:
                statement = schema.schema_change()
                seen = last_number(db) if seen is None else seen
            log.append(f"{statement}  -- {run(writer, statement)}")
            if seen is not None and not writer.in_transaction and dice.random() < 0.4:
                told |= told_tables(db)
                log.append(f"install  -- {set_up(db, seen=seen, recopy_rows=10_000)}")
                seen = None
            if seen is None:
                assert_copied(writer, f"seed {seed}/{triggers}/{changing}:\n" + "\n".join(log), told)
            (changes,) = writer.execute(f"SELECT count(*) FROM {CHANGES}").fetchone()
            if changes > _MOST_CHANGES:
                break
    return changes


@pytest.mark.parametrize("triggers", [0, 3])
def test_changes_of_random_statements_in_random_schemas_make_the_tables(triggers: int) -> None:
    written = sum(attack(run_seed() + number, triggers) for number in range(_CASES))
    assert written > _CASES, "too little happened to prove anything"


@pytest.mark.parametrize("triggers", [0, 3])
def test_schemas_that_change_under_random_statements_are_followed(triggers: int) -> None:
    """By triggers that are made again some statements later, as by a look of capture."""
    written = sum(attack(run_seed() + number, triggers, changing=True) for number in range(_CASES // 4))
    assert written > _CASES // 4, "too little happened to prove anything"


def test_a_program_that_attaches_the_file_beside_another_database_is_recorded(tmp_path: Path) -> None:
    written = sum(attack(run_seed() + number, 3, str(tmp_path / f"{number}.db")) for number in range(_CASES // 10))
    assert written > _CASES // 10, "too little happened to prove anything"


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_a_row_that_comes_back_while_it_is_being_deleted_is_there(recursive: str) -> None:
    """What a foreign key does runs before the AFTER triggers of the row that it follows from."""
    statements = (
        "DELETE FROM p WHERE id = 1",
        "REPLACE INTO p VALUES (7, 'a')",
        "UPDATE OR REPLACE p SET u = 'a' WHERE id = 2",
    )
    comes_back = ("INSERT INTO p VALUES (OLD.p, 'x')", "UPDATE OR REPLACE p SET id = OLD.p WHERE id = 2")
    for timing, returns, statement in product(("BEFORE", "AFTER"), comes_back, statements):
        with recorded(
            "PRAGMA foreign_keys = ON",
            f"PRAGMA recursive_triggers = {recursive}",
            "CREATE TABLE p (id INTEGER PRIMARY KEY, u UNIQUE)",
            "CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE)",
            f"CREATE TRIGGER back {timing} DELETE ON c BEGIN {returns}; END",
        ) as db:
            db.execute("INSERT INTO p VALUES (1, 'a'), (2, 'b')")
            db.execute("INSERT INTO c VALUES (1, 1)")
            run(db, statement)
            assert_copied(db, (timing, returns, statement))


@pytest.mark.parametrize("key", ["", "PRIMARY KEY"])
def test_an_update_whose_row_a_foreign_key_changes_in_its_middle_is_right_by_key_and_without_one_said(key: str) -> None:
    """REPLACE deletes the first row, a foreign key changes the second, which is then written as the update has it."""
    with recorded(
        "PRAGMA foreign_keys = ON",
        f"CREATE TABLE z (id INT {key}, u UNIQUE, v UNIQUE, w REFERENCES z (u) ON DELETE SET NULL)",
    ) as db:
        run(db, "INSERT INTO z VALUES (1, 1, 1, NULL), (2, 2, 2, 1)")
        run(db, "UPDATE OR REPLACE z SET v = 'b'")
        assert db.execute("SELECT * FROM z").fetchall() == [(2, 2, "b", 1)]
        said = [(notice.code, notice.subject) for notice in find_limits(db, ())]
        assert said == ([] if key else [("old-row-overtaken", "main.z")])
        if key:
            assert_copied(db)


@pytest.mark.parametrize("kept", ["", "WITHOUT ROWID"])
@pytest.mark.parametrize("child", ["z", "t"])
def test_a_text_key_that_a_column_of_numbers_refers_to_stays_a_text(child: str, kept: str) -> None:
    """To look for children, SQLite makes the key in OLD a number, and leaves it so."""
    statements = (
        "UPDATE t SET n = 1",
        "UPDATE t SET id = '008' WHERE id = '07'",
        "UPDATE t SET id = '08', u = NULL WHERE typeof(id) = 'text'",
        "REPLACE INTO t (id, n) VALUES ('07', 1)",
        "UPDATE OR REPLACE t SET id = '7'",
        "DELETE FROM t WHERE typeof(id) = 'text'",
        "DELETE FROM t",
    )
    for parent, referring, action in product(("TEXT", ""), ("INT", "REAL", "UUID"), ("CASCADE", "SET NULL")):
        key = f"u {referring} UNIQUE REFERENCES t ON DELETE {action} ON UPDATE {action}"
        tables = (
            (
                f"CREATE TABLE t (id {parent} PRIMARY KEY, n, u) {kept}",
                f"CREATE TABLE z (id INTEGER PRIMARY KEY, {key})",
            )
            if child == "z"
            else (f"CREATE TABLE t (id {parent} PRIMARY KEY, n, {key}) {kept}",)
        )
        with recorded("PRAGMA foreign_keys = ON", *tables) as db:
            for statement in statements:
                run(db, "INSERT OR IGNORE INTO t (id) VALUES ('07'), ('7'), (7), ('x'), (1.0)")
                run(db, f"INSERT OR IGNORE INTO {child} (id, u) VALUES (1, '07'), (2, 7)")
                run(db, statement)
                assert_copied(db, (tables, statement))


@pytest.mark.parametrize("kept", ["", "WITHOUT ROWID"])
@pytest.mark.parametrize("nested", ["", " TEXT REFERENCES t ON DELETE CASCADE"])
def test_a_table_that_a_column_of_numbers_comes_to_refer_to_while_a_pipeline_rests_is_copied_again(
    nested: str, kept: str
) -> None:
    refers = "CREATE TABLE z (id INTEGER PRIMARY KEY, u REAL REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE)"
    for statement in ("UPDATE t SET id = '008' WHERE id = '07'", "DELETE FROM t WHERE typeof(id) = 'text'"):
        table = f"CREATE TABLE t (id TEXT PRIMARY KEY, n, u{nested}) {kept}"
        with recorded("PRAGMA foreign_keys = ON", table) as db:
            run(db, "INSERT INTO t (id) VALUES ('07'), ('7'), ('x')")
            seen = last_number(db)
            run(db, refers)
            run(db, statement)
            report = set_up(db, seen=seen, recopy_rows=10)
            knew = nested and not kept  # a row is found by its rowid
            assert set(report.copied) == (set() if knew else {"t"})
            assert_copied(db, statement)
            run(db, "UPDATE t SET n = 1")
            assert set_up(db, seen=last_number(db), recopy_rows=10).copied == {}


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_a_row_that_a_trigger_of_the_application_changes_before_replace_deletes_it_is_deleted(recursive: str) -> None:
    with recorded(
        f"PRAGMA recursive_triggers = {recursive}",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u UNIQUE, n)",
        "CREATE TRIGGER g BEFORE INSERT ON t BEGIN UPDATE t SET n = n + 1; UPDATE t SET u = NEW.u WHERE id = 1; END",
    ) as db:
        run(db, "INSERT INTO t VALUES (1, 'a', 0)")
        run(db, "REPLACE INTO t VALUES (2, 'b', 0)")
        assert db.execute("SELECT * FROM t").fetchall() == [(2, "b", 0)]
        assert_copied(db)


def test_functions_that_only_one_program_has_hinder_no_other_and_defaults_that_replace_puts_in_are_known() -> None:
    with recorded(
        "CREATE TABLE own (id INTEGER PRIMARY KEY, u TEXT NOT NULL DEFAULT (only_here()) UNIQUE)",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT NOT NULL DEFAULT (lower('A')) UNIQUE)",
    ) as db:
        assert not run(db, "INSERT INTO own VALUES (1, 'x')")
        run(db, "INSERT INTO t VALUES (1, 'a')")
        run(db, "REPLACE INTO t VALUES (2, NULL)")
        assert db.execute("SELECT * FROM t").fetchall() == [(2, "a")]
        assert_copied(db)


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize(
    "made",
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, n)", "CREATE UNIQUE INDEX i ON t (n, id % 3)"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, n, a AS (id % 3), b AS (a + 1) UNIQUE)",),
    ],
)
def test_rows_that_replace_deletes_by_an_expression_of_a_rowid_that_sqlite_chooses_are_recorded_or_said_to_be_missed(
    made: tuple[str, ...], recursive: str
) -> None:
    with recorded(f"PRAGMA recursive_triggers = {recursive}", *made) as db:
        for _ in range(5):
            run(db, "REPLACE INTO t (n) VALUES (1)")
        assert db.execute("SELECT id FROM t").fetchall() == [(3,), (4,), (5,)]
        assert [(notice.code, notice.subject) for notice in find_limits(db, ())] == [("replace-unrecorded", "main.t")]
        if recursive == "ON":
            assert_copied(db)


def test_a_unique_index_of_the_rowid_and_other_columns_is_no_expression_of_it() -> None:
    with recorded("CREATE TABLE t (id INTEGER PRIMARY KEY, n)", "CREATE UNIQUE INDEX i ON t (id, lower(n))") as db:
        assert list(find_limits(db, ())) == []
