"""What Turso's change data capture does not reach: files and addresses are refused with the reason, triggers named."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.sources.sqlite_support import captured, caught_up, copy_of, shop
from tests.sources.test_turso import turso, writer
from tidemill.contracts import Outcome
from tidemill.errors import ConnectionLost, SetupError
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.sources.turso import TursoConfig, TursoSource
from tidemill.sources.turso.client import TursoFile
from tidemill.sources.turso.errors import from_turso

_LIBSQL = """
import sys, libsql
db = libsql.connect(sys.argv[1])
db.execute("PRAGMA capture_data_changes_conn('full')")
db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT)")
db.execute("INSERT INTO orders (customer) VALUES ('ann')")
db.execute("UPDATE orders SET customer = 'bob'")
db.commit()
"""


def _write_with_libsql(path: Path) -> None:
    """In a process of its own: two copies of SQLite in one would lose each other's locks."""
    subprocess.run([sys.executable, "-c", _LIBSQL, str(path)], check=True, timeout=60)


def test_a_file_of_libsql_which_ignores_the_pragma_is_refused_and_captured_by_triggers(tmp_path: Path) -> None:
    pytest.importorskip("libsql", reason="libsql is not installed")
    path = tmp_path / "shop.db"
    _write_with_libsql(path)
    source = TursoSource(TursoConfig(id="shop", path=path))
    with pytest.raises(SetupError) as caught:
        source.setup()
    assert caught.value.code == "cdc-missing"
    assert "type: sqlite" in caught.value.fix
    assert [check.name for check in source.doctor() if check.outcome is Outcome.FAIL] == ["change table"]
    with shop(path) as db, captured(path, tmp_path) as running:
        _write_with_libsql(path)
        events = caught_up(db, running)
        assert [e["op"] for e in events] == [1, 2, 2]
        assert copy_of(events[:1] + events[2:], "orders", (0,)) == {(2,): (2, "bob")}


def test_a_file_that_turso_has_open_is_not_opened_with_sqlite(tmp_path: Path) -> None:
    """SQLite removed the WAL when its connection was closed, and with it what was committed afterwards."""
    path = tmp_path / "shop.db"
    db = turso.connect(str(path), isolation_level=None, experimental_features="multiprocess_wal")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    (tmp_path / "link.db").symlink_to(path)
    source = SqliteSource(SqliteFileConfig(id="shop", path=tmp_path / "link.db"))
    with pytest.raises(SetupError) as caught:
        source.setup()
    assert caught.value.code == "file-unusable"
    assert "type: turso" in caught.value.fix
    assert [check.name for check in source.doctor() if check.outcome is Outcome.FAIL] == ["file"]
    db.execute("INSERT INTO t VALUES (1)")
    db.close()
    del db  # pyturso's lock goes with it
    source.setup()
    with contextlib.closing(sqlite3.connect(path)) as after:
        assert after.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_a_file_in_mvcc_mode_is_refused_and_doctor_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    db = turso.connect(str(path), isolation_level=None, experimental_features="mvcc")
    assert db.execute("PRAGMA journal_mode = 'mvcc'").fetchall() == [("mvcc",)]
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    db.close()
    source = TursoSource(TursoConfig(id="shop", path=path))
    with pytest.raises(SetupError) as caught:
        source.setup()
    assert caught.value.code == "turso-mvcc"
    (check,) = [check for check in source.doctor() if check.outcome is Outcome.FAIL]
    assert "journal_mode" in check.fix


def test_doctor_names_tables_whose_triggers_turso_records_in_the_wrong_order(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    tables = ("CREATE TABLE t (id INTEGER PRIMARY KEY, n INT)", "CREATE TABLE u (id INTEGER PRIMARY KEY)")
    with writer(path, *tables) as db:
        db.execute("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE t SET n = n + 1 WHERE id = NEW.id; END")
        db.execute("CREATE TRIGGER b AFTER INSERT ON u BEGIN INSERT INTO t VALUES (NEW.id, 0); END")
        db.execute("INSERT INTO t VALUES (1, 0)")
        recorded = db.execute("SELECT change_type FROM turso_cdc WHERE table_name = 't'").fetchall()
        (check,) = [c for c in TursoSource(TursoConfig(id="shop", path=path)).doctor() if c.name == "triggers"]
    assert recorded == [(0,), (1,)], "Turso records the update first; if it does not any more, so does our page"
    assert check.outcome is Outcome.WARN
    assert check.detail.endswith(": main.t")


def test_a_statement_that_sqlite_cannot_read_is_named_and_its_table_is_not_left_out_of_a_copy(tmp_path: Path) -> None:
    path, features = tmp_path / "shop.db", "multiprocess_wal,custom_types,strict"
    script = (
        f"import turso; db = turso.connect({str(path)!r}, isolation_level=None, experimental_features={features!r})\n"
        "db.execute(\"PRAGMA capture_data_changes_conn('full')\")\n"
        "db.execute('CREATE TYPE cents BASE integer ENCODE value * 100 DECODE value / 100')\n"
        "db.execute('CREATE TABLE m (id INTEGER PRIMARY KEY, a cents) STRICT')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    source = TursoSource(TursoConfig(id="shop", path=path, experimental_features=features))
    assert [check.detail for check in source.doctor() if check.outcome is Outcome.FAIL] == [
        "statements that cannot be read: main.m"
    ]
    with pytest.raises(SetupError) as caught:
        source.snapshot_reader().tables()
    assert caught.value.code == "cdc-unknown"


@pytest.mark.parametrize("config", [TursoConfig, SqliteFileConfig])
def test_the_address_of_a_server_is_no_file_and_is_not_shown(config: type[TursoConfig | SqliteFileConfig]) -> None:
    with pytest.raises(ValidationError) as caught:
        config.model_validate({"id": "shop", "path": "libsql://shop.example?authToken=secret"})
    (error,) = caught.value.errors()
    assert "address of a server" in error["msg"]
    assert "secret" not in error["msg"]


def test_a_connection_that_turso_gives_up_after_ddl_of_another_process_is_opened_again(tmp_path: Path) -> None:
    """pyturso 0.8.3 says it of every later statement of that connection."""
    path = tmp_path / "shop.db"
    script = (
        "import sys, turso\n"
        "db = turso.connect(sys.argv[1], isolation_level=None, experimental_features='multiprocess_wal')\n"
        "db.execute('CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY)')\n"
        "db.execute(\"PRAGMA capture_data_changes_conn('full')\")\n"
        "for n in range(int(sys.argv[2])): db.execute(f'CREATE TABLE t{n} (a)')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path), "0"], check=True, timeout=60)
    with contextlib.closing(TursoFile(path, "multiprocess_wal", "test")) as file:
        file.rows("SELECT * FROM turso_cdc")
        subprocess.run([sys.executable, "-c", script, str(path), "3"], check=True, timeout=60)
        with contextlib.suppress(ConnectionLost), file.reading():  # a later Turso may not give up
            file.rows("SELECT * FROM turso_cdc")
    with contextlib.closing(TursoFile(path, "multiprocess_wal", "test")) as file:
        assert {"t", "t0", "t1", "t2"} <= file.statements().keys()
    error = from_turso(Exception("Database schema changed"), "test")
    assert isinstance(error, ConnectionLost)
    assert "opened again" in error.what
