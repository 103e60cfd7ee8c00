"""Values of every type, with the database as the oracle: what is decoded, cast back by the server, is what was stored.

The compare is of the types' own output (`format('%s', v)`), which is stricter than their `=`: it sees a numeric's
trailing zeros and a char(n)'s padding, and exists for every type.
"""

from __future__ import annotations

import datetime
import decimal
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from tests.decoders.pgoutput.kinds import KINDS, SETUP, Kind, quoted
from tests.schema.sensing.every_type import refused
from tests.support.pgstream import decode, record
from tests.support.seed import run_seed
from tidemill.decoders.pgoutput.messages import Relation
from tidemill.lab.servers.postgres import Postgres
from tidemill.model import postgres_types
from tidemill.model.block import Block, Op, Side
from tidemill.model.change import Committed
from tidemill.model.snapshot import Chunk
from tidemill.model.table import Table
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.client import SESSION
from tidemill.sources.postgres.config import PostgresConfig
from tidemill.sources.postgres.snapshot import PostgresSnapshotReader

SEED = run_seed()


@dataclass
class Stored:
    """One server with a table per type, and what the decoder made of their rows."""

    db: psycopg.Connection[Any]
    without: dict[str, str]
    tables: dict[str, Table] = field(default_factory=dict)
    decoded: dict[str, dict[int, str | None]] = field(default_factory=dict)
    odd: dict[str, list[str]] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    copied: dict[str, list[Block]] = field(default_factory=dict)


@pytest.fixture(scope="module", params=["18", "15"], ids=lambda name: f"pg{name}")
def stored(request: pytest.FixtureRequest) -> Iterator[Stored]:
    server: Postgres = request.getfixturevalue(f"postgres{request.param}")
    with server.database("every_type") as dsn, _session(dsn) as db:
        for statement in SETUP:
            db.execute(statement.encode())
        found = _decoded(server, db, _create(db, int(request.param)))
        _copy(found, dsn)
        yield found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_a_value_comes_back_as_it_was_stored(stored: Stored, kind: Kind) -> None:
    if kind.type in stored.without:
        pytest.skip(stored.without[kind.type])
    name = _table(kind)
    decoded = stored.decoded[name]
    differing = stored.db.execute(
        f"""
        SELECT format('%%s', t.v), d.text
        FROM public.{name} t LEFT JOIN unnest(%s::int[], %s::text[]) AS d(id, text) USING (id)
        WHERE num_nulls(t.v) <> num_nulls(d.text) OR format('%%s', t.v) <> format('%%s', d.text::{kind.type})
        """.encode(),
        [list(decoded), list(decoded.values())],
    ).fetchall()
    assert not differing, f"seed {SEED}: stored and decoded differ: {differing[:3]}"
    ((count,),) = stored.db.execute(f"SELECT count(*) FROM public.{name}".encode()).fetchall()
    assert len(decoded) == count


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_a_snapshot_reads_the_value_that_the_stream_gives(stored: Stored, kind: Kind) -> None:
    if kind.type in stored.without:
        pytest.skip(stored.without[kind.type])
    name = _table(kind)
    came, copied = (pa.Table.from_batches([b.batch for b in blocks]).combine_chunks()
                    for blocks in (stored.blocks[name], stored.copied[name]))  # fmt: skip
    assert copied["after"].type == came["after"].type
    one, other = (side["after"].chunk(0) for side in (came, copied))
    assert one.field("id").equals(other.field("id"))
    assert texts_of(one.field("v")) == texts_of(other.field("v")), f"seed {SEED}: the two ways differ"
    assert ("odd" in copied.schema.names) == ("odd" in came.schema.names)
    if "odd" in came.schema.names:
        assert copied["odd"].to_pylist() == came["odd"].to_pylist()
    assert set(copied["op"].to_pylist()) == {int(Op.READ)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_a_type_has_its_own_name_and_an_arrow_type_that_holds_all_but_its_odd_values(
    stored: Stored, kind: Kind
) -> None:
    if kind.type in stored.without:
        pytest.skip(stored.without[kind.type])
    column = stored.tables[_table(kind)].columns[1]
    assert (column.type.native, str(column.type.arrow)) == (kind.type, kind.arrow)
    unexpected = [text for text in stored.odd[_table(kind)] if not re.fullmatch(kind.odd or "(?!)", text, re.DOTALL)]
    assert not unexpected, f"seed {SEED}: {kind.arrow} should hold {unexpected[:3]}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_the_json_schema_that_is_sensed_of_the_values_validates_their_events(stored: Stored, kind: Kind) -> None:
    if kind.type in stored.without:
        pytest.skip(stored.without[kind.type])
    assert refused(stored.blocks[_table(kind)]) == [], f"seed {SEED}"


def test_every_type_of_the_type_page_is_among_those_tried() -> None:
    tried = {re.sub(r"\(\d+\)", "", kind.type) for kind in KINDS}
    assert {name for name, *_ in postgres_types.BUILT_IN.values()} <= tried


def _session(dsn: str) -> psycopg.Connection[Any]:
    """Prints values as the replication session does."""
    db = psycopg.connect(dsn, autocommit=True)
    for name, value in SESSION.items():
        db.execute("SELECT set_config(%s, %s, false)", [name, value])
    return db


def _table(kind: Kind) -> str:
    return f"t{KINDS.index(kind)}"


def _create(db: psycopg.Connection[Any], version: int) -> dict[str, str]:
    """Which types this server cannot have, and why."""
    without = {kind.type: f"since PostgreSQL {kind.since}" for kind in KINDS if kind.since > version}
    try:
        db.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        without["xml"] = "this server was built without libxml"
    for kind in KINDS:
        if kind.type not in without:
            db.execute(f"CREATE TABLE public.{_table(kind)} (id int PRIMARY KEY, v {kind.type})".encode())
    db.execute("CREATE PUBLICATION p FOR ALL TABLES")
    db.execute("SELECT pg_create_logical_replication_slot('every_type', 'pgoutput')")
    for kind in KINDS:
        if kind.type not in without:
            values = [*kind.values(random.Random(SEED)), None]
            db.execute(
                f"INSERT INTO public.{_table(kind)} SELECT n, x::{kind.type} "
                "FROM unnest(%s::text[]) WITH ORDINALITY AS given(x, n)".encode(),
                [values],
            )
    return without


def _decoded(server: Postgres, db: psycopg.Connection[Any], without: dict[str, str]) -> Stored:
    result = Stored(db, without)
    catalog = RelationCatalog(lambda: _session(server.dsn("every_type")), "tests")

    def describe(relation: Relation, names: Mapping[int, str]) -> Table:
        return catalog.describe(relation, names).with_fingerprint()

    stream = record(server, "every_type", dbname="every_type", protocol=3)
    for change in decode(stream, describe, capacity=1 << 16):
        assert isinstance(change, Committed)
        for block in change.blocks:
            result.tables[block.table.name] = block.table
            result.blocks.setdefault(block.table.name, []).append(block)
            _take(result, block)
    catalog.close()
    return result


def _copy(result: Stored, dsn: str) -> None:
    reader = PostgresSnapshotReader(PostgresConfig(id="every-type", dsn=dsn, publication="p"))
    for table in reader.tables():
        known = replace(table, table=result.tables[table.table.name])
        with reader.read(Chunk(table.name, 0), known, []) as reading:
            result.copied[table.table.name] = list(reading.blocks())
    reader.close()


def _take(result: Stored, block: Block) -> None:
    after = block.struct("after")
    assert after is not None
    ids: list[int] = after["id"].to_pylist()
    values = dict(zip(ids, texts_of(after["v"]), strict=True))
    found = block.column("odd")
    odd = {} if found is None else {i: o for i, o in zip(ids, found.to_pylist(), strict=True) if o}
    for i, ((item),) in odd.items():
        assert (item["side"], item["column"]) == (Side.AFTER, 1)
        assert values[i] is None, "an odd value is null in its column"
        values[i] = item["text"]
    result.decoded.setdefault(block.table.name, {}).update(values)
    result.odd.setdefault(block.table.name, []).extend(item["text"] for (item,) in odd.values())


def texts_of(array: pa.Array) -> list[str | None]:
    """Arrow values as PostgreSQL reads them. Python's dates end with the year 9999, so days are counted here."""
    kind = array.type
    if pa.types.is_list(kind):
        comma = chr(postgres_types.delimiter(kind))
        lists = (texts_of(item.values) if item.is_valid else None for item in array)
        return [None if items is None else "{" + comma.join(map(_element, items)) + "}" for items in lists]
    if pa.types.is_date(kind):
        return [None if days is None else "".join(_day(days)) for days in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_time(kind):
        return [None if micros is None else _clock(micros) for micros in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_timestamp(kind):
        zone = "+00" if kind.tz else ""
        return [None if micros is None else _moment(micros, zone) for micros in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_float32(kind):
        return [None if value is None else str(np.float32(value)) for value in array.to_pylist()]
    return [None if value is None else _text(value) for value in array.to_pylist()]


def _text(value: Any) -> str:
    match value:
        case bytes():
            return "\\x" + value.hex()
        case decimal.Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _element(text: str | None) -> str:
    return "NULL" if text is None else quoted(text)


def _day(days: int) -> tuple[str, str]:
    """The date and its era. The calendar repeats every 400 years, which are 146097 days."""
    cycles, ordinal = divmod(days + datetime.date(1970, 1, 1).toordinal() - 1, 146_097)
    date = datetime.date.fromordinal(ordinal + 1)
    year = date.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04d}-{date.month:02d}-{date.day:02d}", "" if year > 0 else " BC"


def _clock(micros: int) -> str:
    seconds, micros = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"


def _moment(micros: int, zone: str) -> str:
    days, rest = divmod(micros, 86_400_000_000)
    date, era = _day(days)
    return f"{date} {_clock(rest)}{zone}{era}"
