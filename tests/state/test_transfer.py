"""A store is moved as one file, between SQLite and PostgreSQL in both directions, whole or not at all."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from tests.state.test_migrations import SECOND, rows, use
from tidemill.contracts.installation import AuditEntry, StoredToken
from tidemill.errors import ConfigError, StateTooNew
from tidemill.lab.servers.postgres import Postgres
from tidemill.state import find_store, migrations, open_database, open_installation, open_leases
from tidemill.state.transfer import Transferred, count_rows, export_lines, import_lines, tables

TEXT = 'it\'s "ü" %s ? \\n\n'


def export(uri: str) -> bytes:
    with closing(open_database(uri, create=False)) as database:
        return b"".join(export_lines(database, {}))


def bring_in(uri: str, content: bytes) -> Transferred:
    with closing(open_database(uri, create=False)) as database:
        return import_lines(database, io.BytesIO(content), "moved.jsonl")


def fill(path: Path) -> None:
    """A row in every table that is moved, with what is hard to carry."""
    with closing(open_installation(str(path))) as store:
        store.tokens()
    with closing(sqlite3.connect(path)) as db:
        for table in tables(migrations.latest()):
            columns = [(name, kind) for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")]
            for number in range(2):
                values: list[object] = [
                    f"{TEXT}{number}" if kind == "TEXT" else (2**63 - 1 - number) for _, kind in columns
                ]
                other: dict[str, object] = {"INTEGER": number, "BYTEA": b"\x00\xff%d" % number}
                values = [other.get(kind, value) for (_, kind), value in zip(columns, values, strict=True)]
                names = ", ".join(f'"{name}"' for name, _ in columns)
                db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})", values)
        db.commit()


def test_a_store_moves_to_the_other_backend_and_back_with_every_row(tmp_path: Path, postgres18: Postgres) -> None:
    first, last = tmp_path / "first.sqlite", tmp_path / "last.sqlite"
    fill(first)
    content = export(str(first))
    with postgres18.database("state_moved") as dsn:
        done = bring_in(dsn, content)
        assert done.rows == dict.fromkeys(tables(migrations.latest()), 2)
        assert rows(dsn, "SELECT version FROM migrations") == [(step.version,) for step in migrations.MIGRATIONS]
        back = export(dsn)
    bring_in(str(last), back)
    for table in tables(migrations.latest()):
        read = f"SELECT * FROM {table} ORDER BY 1, 2"
        expected = rows(str(first), read)
        if table == "pipeline_leases":  # nobody holds them there, and their numbers go on
            expected = [(row[0], "", *row[2:]) for row in expected]
        assert rows(str(last), read) == expected, table
    assert count_rows(io.BytesIO(back)) == done


def test_every_table_is_moved_but_who_holds_leases(uri: str) -> None:
    with closing(open_installation(uri)) as store:
        store.tokens()
    listed = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if "://" not in uri
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'tidemill_state'"
    )
    there = {str(name) for (name,) in rows(uri, listed)}
    assert there - {"migrations", "lease_holders", "published_statuses", "server_requests", "key_claims"} == set(
        tables(migrations.latest())
    )


def test_a_fencing_number_goes_on_rising_and_nobody_holds_the_lease(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old.sqlite"), str(tmp_path / "new.sqlite")
    with closing(open_leases(old, seconds=5)) as leases:
        leases.renew("a", 10, "{}")
        assert leases.take("orders", "a", None) == 1
    bring_in(new, export(old))
    with closing(open_leases(new, seconds=5)) as leases:
        seen = leases.find("orders")
        assert seen is not None
        assert (seen.epoch, seen.holder) == (1, None)
        leases.renew("b", 10, "{}")
        assert leases.take("orders", "b", seen) == 2


def test_a_store_that_has_anything_is_left_alone(uri: str, tmp_path: Path) -> None:
    full = tmp_path / "full.sqlite"
    fill(full)
    with closing(open_installation(uri)) as store:
        token = StoredToken("a1", "ann", "admin", "5e88", "2026-01-01T00:00:00Z")
        store.add_token(token, AuditEntry("2026-01-01T00:00:00Z", "ann", "create token", "", "a1"))
        with pytest.raises(ConfigError, match="it has rows of tokens") as refused:
            bring_in(uri, export(str(full)))
        assert "not there yet" in refused.value.fix
        assert (store.tokens(), store.documents()) == ([token], [])


def test_a_store_that_was_only_opened_takes_a_file(uri: str, tmp_path: Path) -> None:
    full = tmp_path / "full.sqlite"
    fill(full)
    with closing(open_installation(uri)) as store:
        assert store.tokens() == []
        bring_in(uri, export(str(full)))
        assert len(store.tokens()) == 2


def _replace_value(lines: list[bytes], value: bytes) -> list[bytes]:
    """The first one of the first row."""
    at = next(number for number, line in enumerate(lines) if line.startswith(b"["))
    return [*lines[:at], b"[" + value + b"," + lines[at].partition(b",")[2], *lines[at + 1 :]]


Damage = Callable[[list[bytes]], list[bytes]]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut off": (lambda lines: lines[:-1], "its end is missing"),
    "cut off in a line": (lambda lines: [*lines[:-2], lines[-2][:5]], "not JSON"),
    "a row less": (lambda lines: lines[:2] + lines[3:], "changed"),
    "a value changed": (lambda lines: [line.replace(b"it's", b"its") for line in lines], "changed"),
    "something else": (lambda lines: [b"metadata: {name: orders}\n"], "not JSON"),
    "empty": (lambda lines: [], "not JSON"),
    "a document": (lambda lines: [b'{"metadata": {}}\n'], "does not begin as one"),
    "a later format": (lambda lines: [lines[0].replace(b'state":1', b'state":2'), *lines[1:]], "its format is 2"),
    "an unknown table": (lambda lines: [lines[0], b'{"table": "x; y", "columns": []}\n', *lines[1:]], "has not"),
    "no version": (lambda lines: [b'{"tidemill_state":1}\n', *lines[1:]], "no number of a version"),
    "version nought": (lambda lines: [b'{"tidemill_state":1,"version":0}\n', *lines[1:]], "no number of a version"),
    "a table without a list": (lambda lines: [lines[0], b'{"table":"tokens","columns":1}\n', *lines[2:]], "neither"),
    "a column without a name": (lambda lines: [lines[0], b'{"table":"tokens","columns":[1]}\n'], "neither"),
    "a value of several": (lambda lines: _replace_value(lines, b"[1]"), "none of a state store"),
    "bytes in no code": (lambda lines: _replace_value(lines, b'{"base64":"!"}'), "not in base64"),
    "bytes without any": (lambda lines: _replace_value(lines, b'{"bytes":"AA=="}'), "none of a state store"),
    "more after its end": (lambda lines: [*lines, lines[-1]], "changed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_whole_changes_nothing(damage: str, tmp_path: Path) -> None:
    full, new = tmp_path / "full.sqlite", str(tmp_path / "new.sqlite")
    fill(full)
    spoil, said = DAMAGES[damage]
    spoiled = spoil(export(str(full)).splitlines(keepends=True))
    with pytest.raises(ConfigError, match=said) as refused:
        bring_in(new, b"".join(spoiled))
    assert "moved.jsonl:" in refused.value.where
    assert find_store(new) is None


def test_a_file_of_an_earlier_version_is_brought_up_to_date(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full.sqlite"
    fill(full)
    content = export(str(full))
    use(monkeypatch, SECOND)
    assert bring_in(uri, content).version == SECOND.version
    assert rows(uri, "SELECT * FROM leases") == []
    assert len(rows(uri, "SELECT * FROM tokens")) == 2


def test_a_file_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full.sqlite"
    with monkeypatch.context() as patched:
        use(patched, SECOND)
        fill(full)
        content = export(str(full))
    assert orjson.loads(content.splitlines()[0])["version"] == SECOND.version
    with pytest.raises(StateTooNew, match=f"of version {SECOND.version}"):
        bring_in(str(tmp_path / "new.sqlite"), content)
