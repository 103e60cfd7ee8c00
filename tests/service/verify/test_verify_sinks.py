"""`tidemill verify` over every kind of sink: no type gives a false alarm, and what was not delivered is found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.decoders.binlog import kinds as mykinds
from tests.decoders.pgoutput import kinds
from tests.support.seed import run_seed, sample
from tests.support.verified import SINKS, SinkServers, verified_pair
from tidemill.contracts import RowFault
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.verify.audit import VerifyOptions, verify
from tidemill.service.verify.verdicts import TableVerdict

_COLUMNS, _ROWS = 5, 10
_NOW = VerifyOptions(wait_seconds=0)
_NUL = b"null\0".hex()


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[SinkServers]:
    made = SinkServers(request)
    yield made
    made.close()


@contextmanager
def _typed(source: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """A database with every type, a few to a table; its dsn and its tables."""
    pick = random.Random(run_seed())
    if source == "mysql":
        server: Server = request.getfixturevalue("mysql")
        mine = [each for each in mykinds.KINDS if server.name in each.servers]
        statements = ["SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"]
        for n in range(0, len(mine), _COLUMNS):
            some = mine[n : n + _COLUMNS]
            cells = [[value for value in kind.values(pick) if _NUL not in value] for kind in some]
            columns = ", ".join(f"v{i} {kind.type}" for i, kind in enumerate(some))
            statements.append(f"CREATE TABLE t{n} (id int PRIMARY KEY, {columns})")
            for i in range(_ROWS):
                values = ", ".join(pick.choice(each) for each in cells)
                statements.append(f"INSERT IGNORE INTO t{n} VALUES ({i}, {values})")
        with server.database("everytype") as dsn:
            server.execute(*statements, database="everytype")
            yield dsn, ["everytype.*"]
        return
    postgres: Postgres = request.getfixturevalue("postgres18")
    theirs = [kind for kind in kinds.KINDS if kind.since <= 18 and kind.type != "xml"]  # built without libxml
    with postgres.database("everytype") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        for statement in kinds.SETUP:
            db.execute(statement)
        for n in range(0, len(theirs), _COLUMNS):
            group = theirs[n : n + _COLUMNS]
            columns = ", ".join(f"v{i} {kind.type}" for i, kind in enumerate(group))
            db.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, {columns})")
            texts = [[*kind.values(pick)] for kind in group]
            for i in range(_ROWS):
                cells_of = ", ".join(f"%s::text::{kind.type}" for kind in group)
                values_of = [pick.choice(each) for each in texts]
                db.execute(f"INSERT INTO t{n} VALUES ({i}, {cells_of})".encode(), values_of)
        yield dsn, ["public.t%"]


@pytest.mark.parametrize(("sink", "source"), sample([(a, b) for a in SINKS for b in ("postgres", "mysql")]))
def test_no_type_gives_a_false_alarm(
    sink: str, source: str, servers: SinkServers, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Rows that the sink cannot hold, and refused, are the only ones that differ."""
    with (
        _typed(source, request) as (dsn, tables),
        verified_pair(source, dsn, tables, servers.sink(sink, tmp_path), tmp_path) as pair,
    ):
        source_object = pair.pipeline.build_source()
        source_object.setup()
        pair.copy()
        found = list(verify(pair.pipeline, options=VerifyOptions(wait_seconds=0, values=True)))
        errors = {one.table: one.error for one in found if one.error}
        assert not errors
        wrong = {(one.table, key.key[0]): (key.fault, key.columns, key.values) for one in found for key in one.keys}
        assert {key: value for key, value in wrong.items() if key not in pair.refused} == {}
        assert wrong.keys() == pair.refused
        assert sum(one.rows for one in found) == _ROWS * len(found)
        assert len(pair.refused) < _ROWS * len(found) / 2, "most rows are compared"


def _keys(verdict: TableVerdict) -> list[tuple[RowFault, tuple[str, ...], tuple[str, ...]]]:
    return sorted((key.fault, key.key, key.columns) for key in verdict.keys)


@pytest.mark.parametrize("sink", SINKS)
def test_what_was_not_delivered_is_found(sink: str, servers: SinkServers, postgres18: Postgres, tmp_path: Path) -> None:
    with (
        postgres18.database(f"undelivered_{sink}") as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
        verified_pair("postgres", dsn, ["public.t"], servers.sink(sink, tmp_path), tmp_path) as pair,
    ):
        db.execute("CREATE TABLE t (a text, b bytea, v numeric(10,2), w text, PRIMARY KEY (a, b))")
        db.execute("INSERT INTO t SELECT 'k' || i, decode('0' || i, 'hex'), i, 'w' FROM generate_series(0, 9) i")
        pair.pipeline.build_source().setup()
        pair.copy()
        (equal,) = verify(pair.pipeline, options=_NOW)
        assert equal.is_equal
        assert equal.rows == 10
        db.execute("DELETE FROM t WHERE a = 'k1'")
        db.execute("UPDATE t SET v = 7.25, w = NULL WHERE a = 'k2'")
        db.execute("INSERT INTO t VALUES ('new', '\\xff', 1, 'w')")
        (verdict,) = verify(pair.pipeline, options=VerifyOptions(wait_seconds=0, values=True))
        assert _keys(verdict) == [
            (RowFault.DIFFERENT, ("k2", "02"), ("v", "w")),
            (RowFault.EXTRA, ("k1", "01"), ()),
            (RowFault.MISSING, ("new", "ff"), ()),
        ]
        (different,) = (key for key in verdict.keys if key.fault is RowFault.DIFFERENT)
        assert different.values[1] == (None, "w")
        assert different.values[0][0] is not None
        assert float(different.values[0][0]) == 7.25
        pair.copy()
        (verdict,) = verify(pair.pipeline, options=_NOW)
        assert _keys(verdict) == [(RowFault.EXTRA, ("k1", "01"), ())]
        assert verdict.keys[0].values == (), "values only where they are asked for"


_MASK = "{type: mask, id: private, salt: salt-and-pepper, rules: [{columns: [email], method: hash}]}"
_RENAME = "{type: rename, id: names, columns: {email: contact}}"
_FILTER = "{type: filter, id: paid, where: {field: paid, eq: true}}"


@pytest.mark.parametrize(
    ("processors", "error"),
    [
        (f"[{_MASK}, {_RENAME}]", ""),
        (f"[{_FILTER}]", "processors drop, add or rename rows of public.t"),
        (f"[{_FILTER[:-1]}, ops: [update]}}]", 'the processor "paid" does not see all of insert, update and read'),
    ],
    ids=["mask and rename", "filter", "some operations"],
)
def test_rows_are_compared_as_processors_leave_them(
    processors: str, error: str, servers: SinkServers, postgres18: Postgres, tmp_path: Path
) -> None:
    with (
        postgres18.database("processed") as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
        verified_pair("postgres", dsn, ["public.t"], servers.sink("postgres", tmp_path), tmp_path, processors) as pair,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY, email text, paid bool)")
        db.execute("INSERT INTO t SELECT i, i || '@example.org', i % 2 = 0 FROM generate_series(1, 20) i")
        pair.pipeline.build_source().setup()
        pair.copy()
        (verdict,) = verify(pair.pipeline, options=_NOW)
        assert (verdict.error, verdict.is_equal) == (error, not error)
        if error:
            return
        db.execute("UPDATE t SET email = 'new@example.org' WHERE id = 7")
        (verdict,) = verify(pair.pipeline, options=_NOW)
        assert _keys(verdict) == [(RowFault.DIFFERENT, ("7",), ("contact",))]
