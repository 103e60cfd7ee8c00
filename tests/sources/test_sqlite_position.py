"""Where a SQLite file goes on, and when it cannot: never a jump (invariant 7). What doctor says of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.sources.sqlite_support import captured, caught_up, config_of, shop
from tests.support.capturing import eventually
from tidemill.contracts import Outcome, Resting
from tidemill.errors import ConfigError, PositionLost, SetupError, TidemillError
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.sqlite import SqliteSource

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT)"


def _removed(path: Path) -> None:
    assert SqliteSource(config_of(path)).uninstall()


def _other_file(path: Path) -> None:
    path.unlink()
    with shop(path, ORDERS):
        SqliteSource(config_of(path)).setup()


def _restored(path: Path) -> None:
    shutil.copy(path.with_suffix(".copy"), path)


def _restored_and_gone_on(path: Path) -> None:
    _restored(path)
    with shop(path, journal="delete") as db:
        for i in range(50, 55):
            db.execute("INSERT INTO orders VALUES (?, 'other')", [i])


def _trimmed_by_hand(path: Path) -> None:
    with shop(path, journal="delete") as db:
        db.execute("INSERT INTO orders VALUES (50, 'x'), (51, 'y')")
        db.execute("DELETE FROM _tidemill_changes WHERE change_id = 4")


def _dropped(table: str) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        with shop(path, journal="delete") as db:
            db.execute(f"DROP TABLE _tidemill_{table}")

    return drop


@pytest.mark.parametrize(
    ("happened", "code"),
    [
        (_removed, "file-replaced"),
        (_other_file, "file-replaced"),
        (_restored, "file-replaced"),
        (_restored_and_gone_on, "file-replaced"),
        (_trimmed_by_hand, "changes-removed"),
        *((_dropped(table), "file-replaced") for table in ("changes", "shapes", "readers", "meta")),
    ],
)
def test_a_file_that_lost_changes_is_an_error_with_its_fix_and_renewed_by_an_operator(
    tmp_path: Path, happened: Callable[[Path], None], code: str
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, journal="delete") as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann')")
            caught_up(db, running)
        shutil.copy(path, path.with_suffix(".copy"))
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (2, 'bob'), (3, 'eve')")
            caught_up(db, running)
            after = running.log.tail().position
    happened(path)
    source = SqliteSource(config_of(path))
    registry = SchemaRegistry(tmp_path / "registry.sqlite")

    def go_on() -> None:
        source.setup(after, registry)
        source.open(after, registry)
        list(source.changes(0))

    with pytest.raises(PositionLost) as caught:
        go_on()
    assert caught.value.code == code
    assert "recover" in caught.value.fix
    checks = {check.name: check for check in source.doctor(Resting(after, None, 0.0))}
    assert code == "changes-removed" or checks["position"].outcome is Outcome.FAIL
    renewed = source.renew(registry)
    source.open(renewed, registry)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO orders VALUES (99, 'kim')")
    changes = [change for change in source.changes(5) if isinstance(change, Committed)]
    rows = [row for change in changes for block in change.blocks for row in block.batch.to_pylist()]
    assert [row["after"]["id"] for row in rows] == [99]
    source.close()
    registry.close()


def test_an_operator_may_pass_over_changes_and_is_told_which(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            after = running.log.tail().position
        db.execute("INSERT INTO orders VALUES (1, 'ann'), (2, 'bob')")
        registry = SchemaRegistry(tmp_path / "registry.sqlite")
        source = SqliteSource(config_of(path))
        passage = source.pass_over(after, None, registry, confirmed=None)
        assert passage.to.startswith("1/")
        assert passage.what == "changes 1 to 1, of main.orders"
        file = after.partition("@")[2]
        assert source.pass_over(after, Position(f"2@{file}"), registry, confirmed=None).to.startswith("2/")
        with pytest.raises(ConfigError, match="1 to 2"):
            source.pass_over(after, Position(f"3@{file}"), registry, confirmed=None)
        assert source.other_server(after, registry) == ""
        assert "another file" in source.other_server(Position("1@0123456789abcdef"), registry)
        registry.close()


@pytest.mark.parametrize("content", [None, b"no database, and longer than a header of one"])
def test_a_path_without_a_database_is_refused_and_no_file_is_made(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "shop.db"
    if content is not None:
        path.write_bytes(content * 40)
    with pytest.raises(SetupError) as caught:
        SqliteSource(config_of(path)).setup()
    assert caught.value.code == "file-unusable"
    assert path.exists() == (content is not None)
    [check] = SqliteSource(config_of(path)).doctor()
    assert check.outcome is Outcome.FAIL


def test_doctor_and_the_status_name_what_a_writer_or_a_table_lacks(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    tables = (
        "CREATE TABLE bare (a)",
        "CREATE TABLE e (a TEXT PRIMARY KEY)",
        "CREATE UNIQUE INDEX x ON e (a > 'm')",
        "CREATE TABLE c (a INTEGER PRIMARY KEY, e REFERENCES e ON DELETE CASCADE)",
        "CREATE TABLE far (a INTEGER PRIMARY KEY)",
        "CREATE TRIGGER one AFTER DELETE ON c BEGIN DELETE FROM far; END",
        "CREATE TRIGGER two BEFORE DELETE ON far BEGIN SELECT CASE WHEN OLD.a THEN raise (FAIL, 'no') END; END",
    )
    with shop(path, *tables, journal="delete"):
        source = SqliteSource(config_of(path, tables=("bare", "e", "absent")))
        checks = list(source.doctor())
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as registry, closing(source):
            source.open(None, registry)
            codes = {notice.code for notice in source.notices()}
    assert codes == {"pattern-unmatched", "replace-unrecorded", "fail-unrecorded"}
    found = {check.name: check.detail for check in checks if check.outcome is not Outcome.PASS}
    assert found.keys() == {"journal_mode", "tables", "keys", "replace-unrecorded", "fail-unrecorded"}
    assert "two on main.far" in found["fail-unrecorded"]


def test_a_set_up_is_idempotent_and_removal_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        before = db.execute("SELECT name, sql FROM sqlite_schema").fetchall()
        source = SqliteSource(config_of(path))
        assert source.setup().changed == ["orders"]
        once = db.execute("SELECT name, sql FROM sqlite_schema").fetchall()
        assert source.setup().changed == []
        assert db.execute("SELECT name, sql FROM sqlite_schema").fetchall() == once
        assert source.uninstall()
        left = [row for row in db.execute("SELECT name, sql FROM sqlite_schema") if row[0] != "sqlite_sequence"]
        assert left == before
        assert source.uninstall() == []


def test_who_is_removed_while_others_read_the_file_hears_for_whom_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        one, two = SqliteSource(config_of(path)), SqliteSource(config_of(path, id="two"))
        one.setup()
        two.setup()
        assert two.uninstall() == ['reader "two"; triggers and tables stay for "shop"']
        assert two.uninstall() == []
        assert db.execute("SELECT name FROM _tidemill_readers").fetchall() == [("shop",)]
        assert "table _tidemill_changes" in one.uninstall()


def test_a_table_whose_columns_hide_the_rowid_is_refused(tmp_path: Path) -> None:
    with shop(tmp_path / "shop.db", "CREATE TABLE t (rowid, oid, _rowid_)"), pytest.raises(TidemillError) as caught:
        SqliteSource(config_of(tmp_path / "shop.db")).setup()
    assert caught.value.code == "table-uncapturable"


def test_a_copy_that_is_put_in_the_place_of_a_running_file_is_gone_on_with(tmp_path: Path) -> None:
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    with shop(path, ORDERS, journal="delete") as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann')")
        caught_up(db, running)
        db.execute(f"VACUUM INTO '{copy}'")
        os.replace(copy, path)
        with shop(path, journal="delete") as new:
            new.execute("INSERT INTO orders VALUES (2, 'bob')")
            events = caught_up(new, running)
    assert [e["after"]["id"] for e in events] == [1, 2]


@pytest.mark.parametrize("way", ["replaced", "overwritten"])
@pytest.mark.parametrize("what", ["another file", "an older copy"])
def test_another_file_in_the_place_of_a_running_one_stops_it(tmp_path: Path, way: str, what: str) -> None:
    path, other = tmp_path / "shop.db", tmp_path / "other.db"
    with shop(path, ORDERS, journal="delete") as db, captured(path, tmp_path) as running:
        if what == "an older copy":
            db.execute(f"VACUUM INTO '{other}'")
        else:
            with shop(other, ORDERS, journal="delete"):
                SqliteSource(config_of(other)).setup()
        db.execute("INSERT INTO orders VALUES (1, 'ann')")
        caught_up(db, running)
        with shop(other, journal="delete") as new:  # as far as the one that we know, and further
            new.execute("INSERT INTO orders VALUES (7, 'x'), (8, 'y'), (9, 'z')")
            if way == "overwritten":
                new.backup(db)
        if way == "replaced":
            os.replace(other, path)
        eventually(lambda: running.failure)
        [failure] = running.failure
        assert isinstance(failure, PositionLost)
        assert failure.code == "file-replaced"
        assert len(running.rows()) == 1
