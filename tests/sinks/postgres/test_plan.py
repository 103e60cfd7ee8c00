"""What the postgres sink says it would do about a schema change, and what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill.contracts import Sink
from tidemill.errors import Refused
from tidemill.model.delivery import Delivery
from tidemill.model.schema_change import SchemaChangeKind, SchemaPlan
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.changes import change_between
from tidemill.sinks.blackhole import BlackholeConfig, BlackholeSink
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig

FIRST = make_table()
TEXT = DataType("text", pa.string(), JsonForm.STRING)


def _next(*columns: Column, renamed: tuple[tuple[str, str], ...] = ()) -> Table:
    return dataclasses.replace(
        FIRST, columns=columns, renamed=renamed, version=2, sequence=2, fingerprint=""
    ).with_fingerprint()


def _renamed(old: str, new: str) -> Table:
    columns = (dataclasses.replace(c, name=new) if c.name == old else c for c in FIRST.columns)
    return _next(*columns, renamed=((old, new),))


ADDED = _next(*FIRST.columns, Column("added", TEXT))
RENAMED = _renamed("note", "remark")
DROPPED = _next(*(c for c in FIRST.columns if c.name != "note"))


def delivery_of(table: Table, start: int = 0) -> Delivery:
    block = make_block(3, table=table, offsets=range(start, start + 3), first_id=start)
    return Delivery("shop", "orders", start, start + 3, 0, 1, lambda: iter((block,)))


@pytest.fixture
def sink(database: str) -> Iterator[PostgresSink]:
    with closing(PostgresSink(PostgresSinkConfig(id="s", dsn=database, allow_destructive_ddl=True))) as made:
        yield made


@pytest.fixture
def target(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as db:
        yield db


def names(target: psycopg.Connection[Any]) -> list[str]:
    found = target.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'orders' ORDER BY ordinal_position"
    )
    return [name for (name,) in found]


def test_the_plan_of_a_new_table_creates_it_and_planning_creates_nothing(
    sink: PostgresSink, target: psycopg.Connection[Any]
) -> None:
    change = change_between("shop", 0, None, FIRST)
    assert change.kinds == {SchemaChangeKind.CREATE_TABLE}
    (statement,) = sink.plan(change).statements
    assert statement.startswith('CREATE TABLE "public"."orders" ("id" bigint NOT NULL')
    assert target.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%tidemill%'").fetchone() == (0,)
    assert names(target) == []
    sink.apply(change)
    assert names(target) == [c.name for c in FIRST.columns]
    assert sink.plan(change) == SchemaPlan()


@pytest.mark.parametrize(
    ("after", "kind", "statement"),
    [
        (ADDED, SchemaChangeKind.ADD_COLUMN, 'ALTER TABLE "public"."orders" ADD COLUMN "added" text'),
        (RENAMED, SchemaChangeKind.RENAME_COLUMN, 'ALTER TABLE "public"."orders" RENAME COLUMN "note" TO "remark"'),
        (DROPPED, SchemaChangeKind.DROP_COLUMN, 'ALTER TABLE "public"."orders" DROP COLUMN "note"'),
    ],
)
def test_what_is_planned_is_what_is_applied_and_rows_then_find_their_table_ready(
    sink: PostgresSink, target: psycopg.Connection[Any], after: Table, kind: SchemaChangeKind, statement: str
) -> None:
    sink.write(delivery_of(FIRST))
    change = change_between("shop", 3, FIRST, after)
    assert change.kinds == {kind}
    before = names(target)
    plan = sink.plan(change)
    assert plan.statements[0] == statement
    assert names(target) == before, "planning changed the table"

    sink.apply(change)
    assert set(names(target)) == {c.name for c in after.columns}
    assert sink.plan(change) == SchemaPlan(), "something is left to do"
    sink.apply(change)  # again, after a crash

    made = target.execute("SELECT xmin::text, attname FROM pg_attribute WHERE attrelid = 'orders'::regclass").fetchall()
    assert sink.write(delivery_of(after, start=3)).events == 3
    assert (
        made
        == target.execute("SELECT xmin::text, attname FROM pg_attribute WHERE attrelid = 'orders'::regclass").fetchall()
    ), "the delivery still changed the table"


def test_a_plan_refuses_what_would_be_refused(database: str, sink: PostgresSink) -> None:
    sink.write(delivery_of(FIRST))
    with closing(PostgresSink(PostgresSinkConfig(id="other", dsn=database, create_tables=False))) as strict:
        for act in (strict.plan, strict.apply):
            with pytest.raises(Refused, match="lacks changes of the source"):
                act(change_between("shop", 3, FIRST, ADDED))


def test_a_sink_that_keeps_no_tables_plans_nothing() -> None:
    sink: Sink = BlackholeSink(BlackholeConfig(id="s"))
    change = change_between("shop", 3, FIRST, ADDED)
    assert sink.plan(change) == SchemaPlan()
    sink.apply(change)
