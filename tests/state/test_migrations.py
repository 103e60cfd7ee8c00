"""A store is brought to our version in one step, by whoever comes first; a newer one is left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.state.conftest import Opener
from tests.support.blocks import make_table
from tidemill.contracts import ConfirmedPosition
from tidemill.errors import StateError, StateTooNew, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotTable
from tidemill.state import find_store, migrations, open_store
from tidemill.state.migrations import Migration

NOW = migrations.latest()
HERE = [(step.version, step.name) for step in migrations.MIGRATIONS]

SECOND = Migration(NOW + 1, "leases", ("CREATE TABLE leases (pipeline TEXT PRIMARY KEY, fence BIGINT NOT NULL)",))
THIRD = Migration(
    NOW + 2,
    "a deadline",
    (
        "ALTER TABLE leases ADD COLUMN until TEXT",
        "INSERT INTO leases (pipeline, fence) SELECT pipeline, 1 FROM pipelines",
    ),
)


def test_steps_are_in_the_order_of_their_numbers() -> None:
    versions = [step.version for step in migrations.MIGRATIONS]
    assert versions == sorted(set(versions))


def test_a_store_keeps_its_state_on_the_way_to_a_later_one(
    uri: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opener()
    old.claim("orders", "here")
    old.confirm("orders", Position("0/7"), 7)
    old.close()
    use(monkeypatch, SECOND, THIRD)
    new = opener()
    assert new.confirmed("orders") == ConfirmedPosition(Position("0/7"), 7)
    assert rows(uri, "SELECT version, name FROM migrations ORDER BY version") == [
        *HERE, (NOW + 1, "leases"), (NOW + 2, "a deadline"),
    ]  # fmt: skip
    assert rows(uri, "SELECT pipeline, fence, until FROM leases") == [("orders", 1, None)]


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    uri: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opener()
    old.confirm("orders", Position("0/7"), 7)
    with monkeypatch.context() as patched:
        use(patched, SECOND, Migration(NOW + 2, "wrong", ("CREATE TABLE more (n BIGINT)", "DELETE FROM nowhere")))
        with pytest.raises(StateError, match="nowhere"):
            opener().confirmed("orders")
        with pytest.raises(StateError, match="nowhere"):
            opener().confirm("orders", Position("0/8"), 8)
    assert opener().confirmed("orders") == ConfirmedPosition(Position("0/7"), 7)
    assert rows(uri, "SELECT version, name FROM migrations ORDER BY version") == HERE
    use(monkeypatch, SECOND)
    assert opener().confirmed("orders") == ConfirmedPosition(Position("0/7"), 7)
    assert rows(uri, "SELECT * FROM leases") == []


def test_a_store_that_is_newer_than_the_code_is_refused_with_what_to_do(
    uri: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        use(patched, SECOND)
        opener().confirm("orders", Position("0/7"), 7)
    attempts: list[Callable[[], object]] = [lambda: opener().confirmed("orders"), lambda: find_store(uri)]
    for attempt in attempts:
        with pytest.raises(
            StateTooNew, match=f"at version {NOW + 1}, and this Tidemill knows versions up to {NOW}"
        ) as refused:
            attempt()
        assert "Run that version or a newer one" in refused.value.fix
        assert not is_retryable(refused.value)
    assert rows(uri, "SELECT position FROM confirmed_positions") == [("0/7",)]


def test_who_only_looks_makes_nothing(uri: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_store(uri) is None
    assert "://" in uri or not Path(uri).exists()
    opener().confirm("orders", Position("0/7"), 7)
    found = find_store(uri)
    assert found is not None
    assert found.confirmed("orders") == ConfirmedPosition(Position("0/7"), 7)
    found.close()
    use(monkeypatch, SECOND)
    assert find_store(uri) is None, "not opened since the upgrade"
    assert rows(uri, "SELECT version, name FROM migrations ORDER BY version") == HERE


_OPENS = """
import sys
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotTable
from tidemill.state import open_store
store = open_store(sys.argv[1])
sys.stdin.readline()
store.confirm(sys.argv[2], Position("0/7"), 7)
"""


def test_processes_that_open_a_new_store_at_once_all_get_it(uri: str) -> None:
    names = [f"pipeline-{number}" for number in range(4)]
    crowd = [subprocess.Popen([sys.executable, "-c", _OPENS, uri, name], stdin=subprocess.PIPE) for name in names]
    for process in crowd:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(60) for process in crowd] == [0] * len(crowd)
    store = open_store(uri)
    assert {store.confirmed(name) for name in names} == {ConfirmedPosition(Position("0/7"), 7)}
    store.close()
    assert rows(uri, "SELECT version FROM migrations") == [(step.version,) for step in migrations.MIGRATIONS]


def test_a_user_without_the_right_to_make_a_schema_uses_one_that_is_there(postgres18: Postgres) -> None:
    with postgres18.database("state_rights") as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("DROP ROLE IF EXISTS state_clerk")
            admin.execute("CREATE ROLE state_clerk LOGIN")
        clerk = psycopg.conninfo.conninfo_to_dict(dsn)
        host, port = clerk.get("host", ""), clerk.get("port", "")
        uri = f"postgresql:///state_rights?host={host}&port={port}&user=state_clerk&schema=odd%20name"
        store = open_store(uri)
        with pytest.raises(StateError, match="permission denied") as refused:
            store.confirmed("orders")
        assert "may use the schema" in refused.value.fix
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute('CREATE SCHEMA "odd name" AUTHORIZATION state_clerk')
        store.confirm("orders", Position("0/7"), 7)
        assert store.confirmed("orders") is not None
        store.close()
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute('DROP SCHEMA "odd name" CASCADE')
            admin.execute("DROP ROLE state_clerk")


def test_chunks_that_an_older_version_kept_are_counted(
    uri: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From version 19 on a chunk that is in the log is a number of its table."""
    steps = migrations.MIGRATIONS
    monkeypatch.setattr(migrations, "MIGRATIONS", tuple(step for step in steps if step.version < 19))
    old = opener()
    old.confirm("orders", Position("0/7"), 7)
    old.close()
    table = "('orders', 3, 'public.t', 1, 'copying', '{}', 1, 0, 0, 'null', 4, '[]', '', '')"
    chunks = ", ".join(
        f"('orders', {snapshot}, 1, {number}, '{{}}', '{state}', -1, '', 0, '', {count}, 0)"
        for snapshot, number, state, count in ((3, 0, "adopted", 10), (3, 1, "adopted", 5), (3, 2, "staged", 7),
                                              (2, 0, "adopted", 99))
    )  # fmt: skip
    rows(uri, f"INSERT INTO snapshot_tables VALUES {table} RETURNING 1")
    rows(uri, f"INSERT INTO snapshot_chunks VALUES {chunks} RETURNING 1")
    monkeypatch.setattr(migrations, "MIGRATIONS", steps)
    opener().confirm("orders", Position("0/8"), 8)
    assert rows(uri, "SELECT adopted_chunks, adopted_rows FROM snapshot_tables") == [(2, 15)]
    assert rows(uri, "SELECT snapshot, number, state FROM snapshot_chunks") == [(3, 2, "staged")]


def test_a_chunk_that_an_older_process_adopted_beside_us_is_not_waited_for(uri: str, opener: Opener) -> None:
    """It keeps the row, and says in it that the chunk is in the log."""
    store = opener().snapshots
    store.begin("orders", "asked for", ["public.t"], "", "")
    store.add_tables("orders", 1, [SnapshotTable(make_table("t"), ("id",), 10, Position("0/1"), ("",), "")])
    (table,) = store.tables("orders", 1)
    store.plan("orders", 1, [(table, [Chunk(table.name, 0), Chunk(table.name, 1)])])
    rows(uri, "UPDATE snapshot_chunks SET state = 'adopted' WHERE number = 0 RETURNING 1")
    (table,) = store.tables("orders", 1)
    assert (table.chunks, table.adopted) == (1, 0)
    (left,) = store.chunks("orders", 1, ChunkState.PLANNED)
    store.stage("orders", 1, [left])
    store.adopt("orders", 1, [(left, 3)])
    (table,) = store.tables("orders", 1)
    assert table.chunks == table.adopted


def use(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    """As if this Tidemill were a later one."""
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, *more))


def rows(uri: str, statement: str) -> list[tuple[object, ...]]:
    """Past the store."""
    if "://" not in uri:
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(uri)) as file, file:
            return list(file.execute(statement))
    with psycopg.connect(uri, options="-c search_path=tidemill_state") as db:
        return list(db.execute(statement))
