"""The proof's PostgreSQL: five kinds of table, every kind of transaction, and the server's own account of both.

`tally` reads a second slot, decoded by the server's `test_decoding`: an account of the same WAL that shares no code
with ours.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import orjson
import psycopg
from psycopg.errors import DuplicateColumn

from tests.crash.harness import Ending, Row, Tally
from tests.crash.postgres_statements import DOCUMENT_STATEMENTS, STATEMENTS, _deposit
from tidemill.lab.servers.postgres import Postgres

_TABLES = """
CREATE SEQUENCE ids;
CREATE TABLE accounts (
    id bigint PRIMARY KEY, balance numeric(12,2), note text, at timestamptz DEFAULT clock_timestamp(),
    open boolean DEFAULT true, score double precision
);
CREATE TABLE lines (
    "order" integer, "Zeile" text, quantity integer, tags integer[], doc jsonb, PRIMARY KEY ("order", "Zeile")
);
CREATE TABLE documents (name text PRIMARY KEY, body text, revision integer, extra bytea);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;
CREATE TABLE journal (what text, amount numeric, body text);
ALTER TABLE journal REPLICA IDENTITY FULL;
ALTER TABLE journal ALTER body SET STORAGE EXTERNAL;
CREATE TABLE readings (id bigint, region text, value real, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE readings_north PARTITION OF readings FOR VALUES IN ('north');
CREATE TABLE readings_south PARTITION OF readings FOR VALUES IN ('south');
CREATE TABLE readings_other PARTITION OF readings DEFAULT;
"""
_KEYS: dict[str, tuple[str, ...]] = {
    "accounts": ("id",),
    "lines": ("order", "Zeile"),
    "documents": ("name",),
    "journal": (),
    "readings": ("id", "region"),
}
_ROOTS = {f"readings_{part}": "readings" for part in ("north", "south", "other")}
_LARGE_IDS = 1_000_000_000
_EXTRA_COLUMNS = 3
_SIZES = {"large": 25_000, "medium": 800, "savepoints": 400, "rolled_back": 300}
# How PostgreSQL itself writes a column's value in the form that docs/reference/postgres-types.md promises.
_RENDER = {
    "numeric": "to_jsonb({}::text)",
    "timestamptz": """to_jsonb(to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))""",
    "bytea": r"to_jsonb(replace(encode({}, 'base64'), E'\n', ''))",
}
_LINE = re.compile(r"table (?P<tables>.*?): (?P<op>INSERT|UPDATE|DELETE|TRUNCATE): (?P<rest>.*)", re.DOTALL)


class PostgresHarness:
    MOVES: ClassVar[Mapping[str, float]] = {
        "small": 60, "savepoints": 8, "rolled_back": 6, "documents": 12, "message": 3, "rename": 1, "truncate": 1,
        "medium": 2, "large": 0.4, "ddl": 1,
    }  # fmt: skip
    SPILLED: ClassVar[str] = "medium"
    COUNTS_DDL: ClassVar[bool] = False  # test_decoding tells none

    def __init__(self, server: Postgres, database: str) -> None:
        self.server = server
        self.database = database
        self.dsn = server.dsn(database)
        self._account = f"account_{database}"
        self._tally: Tally = Counter()

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        return _KEYS

    def create(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute(_TABLES)
            # Before the first change, so that both accounts begin at the same place.
            db.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [self._account])

    def source(self, name: str) -> dict[str, Any]:
        tables = [f"public.{table}" for table in _KEYS]
        return {"type": "postgres", "config": {"id": name, "dsn": self.dsn, "tables": tables, "feedback_seconds": 0.2}}

    def ready(self) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            slots = db.execute(
                "SELECT 1 FROM pg_replication_slots WHERE database = %s AND slot_name <> %s AND confirmed_flush_lsn "
                "IS NOT NULL", [self.database, self._account],
            ).fetchall()  # fmt: skip
        return bool(slots)

    def session(self) -> PostgresSession:
        return PostgresSession(self.dsn)

    def restart(self, ending: Ending) -> None:
        if ending == "kill":
            self.server.kill()
            self.server.start()
        else:
            self.server.restart(ending)

    def rows(self, table: str) -> list[Row]:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            columns = db.execute(
                "SELECT quote_ident(attname), quote_literal(attname), typname FROM pg_attribute "
                "JOIN pg_type t ON t.oid = atttypid WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
                "ORDER BY attnum", [table],
            ).fetchall()  # fmt: skip
            fields = ", ".join(
                f"{literal}, {_RENDER.get(kind, 'to_jsonb({})').format(ident)}" for ident, literal, kind in columns
            )
            found = db.execute(f"SELECT jsonb_build_object({fields})::text FROM {table}".encode())
            return [orjson.loads(text) for (text,) in found]

    def tally(self) -> Tally:
        """Consumes the account slot; may be called again."""
        with psycopg.connect(self.dsn, autocommit=True) as db:
            # Long values are of no interest, but whether one is missing (TOAST) or a key changed is. Messages that the
            # source itself writes, to have a transaction to remember, become no events.
            for (line,) in db.execute(
                "SELECT CASE WHEN length(data) < 600 THEN data ELSE left(data, 500) || "
                "CASE WHEN data LIKE '%%unchanged-toast-datum%%' THEN ' unchanged-toast-datum' ELSE '' END || "
                "CASE WHEN data LIKE '%% new-tuple: %%' THEN ' new-tuple: ' ELSE '' END END "
                "FROM pg_logical_slot_get_changes(%s, NULL, NULL) "
                "WHERE data !~ '^(BEGIN|COMMIT|message: .* prefix: tidemill[.]witness,)'", [self._account],
            ):  # fmt: skip
                self._tally.update(_events_of(line))
        return self._tally


def _events_of(line: str) -> list[tuple[str, str]]:
    if line.startswith("message:"):
        return [("message", "message")]
    found = _LINE.match(line)
    assert found, line[:200]
    names = [name.strip().rpartition(".")[2].strip('"') for name in found["tables"].split(",")]
    if found["op"] == "TRUNCATE":
        return [(name, "truncate") for name in names if name in _KEYS]  # a root's partitions are listed beside it
    table = _ROOTS.get(names[0], names[0])
    op = found["op"].lower()
    changed_key = op == "update" and found["rest"].startswith("old-key:") and bool(_KEYS[table])
    if changed_key and "unchanged-toast-datum" not in found["rest"]:
        return [(table, "delete"), (table, "insert")]
    return [(table, op)]


class PostgresSession:
    """Does one transaction per move. What the server refuses is rolled back; a server that is away is waited for."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._db: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def move(self, kind: str, dice: Random) -> int:
        deadline = time.monotonic() + 180
        while True:
            try:
                db = self._connected()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the database does not come back"
                time.sleep(0.05)
        try:
            getattr(self, f"_{kind}")(db, dice)
            db.commit()
        except (psycopg.OperationalError, psycopg.IntegrityError, psycopg.InternalError, DuplicateColumn):
            # A restart, a deadlock, a lock not had in time, a key that is taken, a column that somebody else
            # added meanwhile: ordinary life of a client.
            with contextlib.suppress(psycopg.Error):
                db.rollback()
        return _SIZES.get(kind, 10)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._db is None or self._db.closed:
            self._db = psycopg.connect(self._dsn, connect_timeout=5)
            self._db.execute("SET lock_timeout = '2s'")
            self._db.commit()
        return self._db

    def _small(self, db: psycopg.Connection[Any], dice: Random) -> None:
        for _ in range(dice.randint(1, 6)):
            dice.choice(STATEMENTS)(db, dice)

    def _savepoints(self, db: psycopg.Connection[Any], dice: Random) -> None:
        for _ in range(dice.randint(1, 4)):
            self._small(db, dice)
            db.execute("SAVEPOINT a")
            _rows_in_bulk(db, dice, dice.choice((3, 3, 500)))
            db.execute("SAVEPOINT b")
            self._small(db, dice)
            db.execute(dice.choice(("ROLLBACK TO a", "ROLLBACK TO b", "RELEASE a")).encode())

    def _rolled_back(self, db: psycopg.Connection[Any], dice: Random) -> None:
        self._small(db, dice)
        if dice.random() < 0.4:
            _rows_in_bulk(db, dice, 800)
        db.rollback()

    def _documents(self, db: psycopg.Connection[Any], dice: Random) -> None:
        for _ in range(dice.randint(1, 4)):
            dice.choice(DOCUMENT_STATEMENTS)(db, dice)

    def _rename(self, db: psycopg.Connection[Any], dice: Random) -> None:
        """The key changes and the long values stay: the only key change that cannot be split."""
        db.execute(
            "UPDATE documents SET name = %s WHERE name = "
            "(SELECT name FROM documents WHERE length(body) > 5000 ORDER BY revision DESC LIMIT 1)",
            [f"doc-{dice.randint(41, 60)}"],
        )

    def _message(self, db: psycopg.Connection[Any], dice: Random) -> None:
        if dice.random() < 0.5:
            _deposit(db, dice)
        db.execute("SELECT pg_logical_emit_message(true, 'proof', %s)", [str(dice.random())])

    def _truncate(self, db: psycopg.Connection[Any], dice: Random) -> None:
        if dice.random() < 0.5:
            self._small(db, dice)
        tables = dice.choice(("lines", "journal", "readings", "lines, journal", "documents"))
        db.execute(f"TRUNCATE {tables}".encode())
        if dice.random() < 0.5:
            self._small(db, dice)

    def _medium(self, db: psycopg.Connection[Any], dice: Random) -> None:
        """Large enough for the server to send it before its commit."""
        _rows_in_bulk(db, dice, dice.randint(400, 1200))
        self._small(db, dice)

    def _large(self, db: psycopg.Connection[Any], dice: Random) -> None:
        count = dice.randint(10_000, 20_000)
        first = _rows_in_bulk(db, dice, count)
        self._small(db, dice)
        fate = dice.random()
        if fate < 0.25:
            db.rollback()
        elif fate < 0.5:
            db.execute("SAVEPOINT a")
            db.execute("UPDATE accounts SET open = false WHERE id BETWEEN %s AND %s", [first, first + count])
            db.execute("ROLLBACK TO a")
        else:
            db.execute("UPDATE accounts SET score = id WHERE id BETWEEN %s AND %s", [first, first + count // 3])
        # The tables must not outgrow the comparison.
        db.execute("DELETE FROM accounts WHERE id >= %s AND id < %s", [_LARGE_IDS, first])

    def _ddl(self, db: psycopg.Connection[Any], dice: Random) -> None:
        table = dice.choice(list(_KEYS))
        taken = db.execute(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attname LIKE 'extra\\_%%'", [table]
        ).fetchall()[0][0]
        if taken >= _EXTRA_COLUMNS:
            return
        if dice.random() < 0.5:
            self._small(db, dice)  # rows of the old and of the new structure in one transaction
        kind = dice.choice(("integer", "text", "numeric(10,3)", "timestamptz", "boolean"))
        # No default: rows that are there already read NULL, as a consumer without the column has it.
        db.execute(f"ALTER TABLE {table} ADD COLUMN extra_{taken} {kind}".encode())
        self._small(db, dice)
        value = {"text": "'ünï'", "timestamptz": "now()", "boolean": "true"}.get(kind, "42")
        if table in ("accounts", "lines", "readings"):
            db.execute(f"UPDATE {table} SET extra_{taken} = {value} WHERE random() < 0.1".encode())


def _rows_in_bulk(db: psycopg.Connection[Any], dice: Random, count: int) -> int:
    """The first id of `count` new accounts with consecutive ids."""
    last: int = db.execute("SELECT setval('ids', nextval('ids') + %s)", [count]).fetchall()[0][0]
    first = _LARGE_IDS + last - count
    db.execute(
        "INSERT INTO accounts (id, balance, note) SELECT n, n %% 1000, 'bulk ' || n FROM generate_series(%s, %s) n",
        [first, first + count - 1],
    )
    return first
