"""Values of every type, with the server as the oracle: what is decoded reads as what the server says it stored.

Each type is decoded twice, once as the catalog describes its column and once as the TABLE_MAP event alone does.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
import pytest

from tests.decoders.binlog.kinds import DOUBLE, KINDS, Kind
from tests.schema.sensing.every_type import refused
from tests.servers.mysql import KINDS as SERVERS
from tests.sources.mysupport import config
from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql import types
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.binlog import expression
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Block, Side
from tidemill.model.change import Committed
from tidemill.sources.mysql.client import connect
from tidemill.sources.mysql.result import prepare_session, read_blocks

SEED = run_seed()
#: Types that a TABLE_MAP event does not tell from others.
_ONLY_IN_THE_CATALOG = ("uuid", "inet4", "inet6")


@dataclass
class Stored:
    """What one server says it stored, and what the decoder made of it."""

    server: Server
    tables: MapTables
    shown: dict[str, dict[int, str | None]] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=dict)


@pytest.fixture(scope="module", params=SERVERS)
def stored(request: pytest.FixtureRequest) -> Iterator[Stored]:
    server: Server = request.getfixturevalue(request.param)
    flavor = Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB
    db = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True, charset="utf8mb4")
    with db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE every_type CHARACTER SET utf8mb4")
        cursor.execute("USE every_type")
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        begin = end_of_binlog(server)
        made = Stored(server, MapTables(_fill(cursor, server), flavor=flavor))
        for kind in _of(server):
            cursor.execute(f"SELECT id, {kind.shown} FROM {_table(kind)} ORDER BY id")
            made.shown[_table(kind)] = {i: None if v is None else _plain(v) for i, v in cursor.fetchall()}
        stream = record(server, begin)
        for change in decode(stream, made.tables, flavor, capacity=1 << 16):
            assert isinstance(change, Committed)
            for block in change.blocks:
                block.batch.validate(full=True)
                made.blocks.setdefault(block.table.name, []).append(block)
        yield made
        cursor.execute("DROP DATABASE every_type")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type[:50])
def test_a_value_comes_back_as_it_was_stored(stored: Stored, kind: Kind) -> None:
    _skip_unless_here(stored, kind)
    decoded: dict[int, str | None] = {}
    for block in stored.blocks[_table(kind)]:
        decoded |= _texts(block, kind)
    wanted = stored.shown[_table(kind)]
    differing = [(i, wanted[i], decoded.get(i)) for i in wanted if wanted[i] != decoded.get(i, "missing")]
    assert not differing, f"seed {SEED}: (row, stored, decoded) {differing[:4]}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type[:50])
def test_a_type_has_its_own_name_and_an_arrow_type_that_holds_all_but_its_odd_values(
    stored: Stored, kind: Kind
) -> None:
    _skip_unless_here(stored, kind)
    blocks = stored.blocks[_table(kind)]
    column = blocks[0].table.columns[1]
    assert (column.type.native, str(column.type.arrow)) == (kind.native, kind.arrow)
    odd = [item["text"] for block in blocks for items in (block.column("odd") or []) for item in items.as_py() or []]
    assert not [text for text in odd if not re.fullmatch(kind.odd, text)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type[:50])
def test_the_json_schema_that_is_sensed_of_the_values_validates_their_events(stored: Stored, kind: Kind) -> None:
    _skip_unless_here(stored, kind)
    assert refused(stored.blocks[_table(kind)]) == [], f"seed {SEED}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type[:50])
def test_a_table_map_with_full_metadata_says_the_same_as_the_catalog(stored: Stored, kind: Kind) -> None:
    _skip_unless_here(stored, kind)
    if kind.type in _ONLY_IN_THE_CATALOG:
        pytest.skip("looks like BINARY in the binlog")
    shape = stored.tables.shapes[f"every_type.{_table(kind)}"]
    assert types.of_map(shape, 1) == stored.blocks[_table(kind)][0].table.columns[1].type


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type[:50])
def test_a_snapshot_reads_the_value_that_the_stream_has(stored: Stored, kind: Kind) -> None:
    _skip_unless_here(stored, kind)
    streamed = stored.blocks[_table(kind)]
    table = streamed[0].table
    with connect(config(stored.server.dsn("every_type"))) as db:
        prepare_session(db, stored.tables.flavor)
        shown = ", ".join(expression(column, f"`{column.name}`") for column in table.columns)
        statement = f"SELECT {shown} FROM `{table.name}` ORDER BY id"
        read = list(read_blocks(db, statement, table, null_zero_dates=False, silence=30))
        assert db.value("SELECT 1") == 1, "the session can be used again"
    for block in read:
        block.batch.validate(full=True)
    assert _after(read) == _after(streamed), f"seed {SEED}"
    assert {block.table for block in read} == {table}


def _after(blocks: list[Block]) -> list[tuple[Any, Any]]:
    """Images and odd values, as text: NaN equals NaN, and -0.0 differs from 0.0."""
    rows: list[tuple[Any, Any]] = []
    for block in blocks:
        odd = block.column("odd") or pa.nulls(block.rows)
        after = block.batch.column("after").cast(
            pa.struct([(f.name, _exact(f.type)) for f in block.batch.column("after").type])
        )
        rows += [(repr(image), texts) for image, texts in zip(after.to_pylist(), odd.to_pylist(), strict=True)]
    return rows


def _exact(kind: pa.DataType) -> pa.DataType:
    """Python's dates end with the year 9999, and begin with 1."""
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date(kind) else kind


def test_every_type_of_the_type_page_is_among_those_tried() -> None:
    assert set(types.BUILT_IN) <= {
        re.sub(r"\(\d\)$", "", k.native) if k.native != "bit(1)" else k.native for k in KINDS
    }


def _of(server: Server) -> list[Kind]:
    return [kind for kind in KINDS if server.name in kind.servers]


def _skip_unless_here(stored: Stored, kind: Kind) -> None:
    if stored.server.name not in kind.servers:
        pytest.skip(f"only {', '.join(kind.servers)}")
    if kind.native == "inet4" and _table(kind) not in stored.shown:
        pytest.skip("since MariaDB 10.10")


def _table(kind: Kind) -> str:
    return f"t{KINDS.index(kind)}"


def _fill(cursor: Any, server: Server) -> dict[str, list[tuple[str, str, str]]]:
    for kind in _of(server):
        cursor.execute(f"CREATE TABLE {_table(kind)} (id int PRIMARY KEY, v {kind.type})")
        for i, value in enumerate([*kind.values(random.Random(SEED)), "NULL"]):
            cursor.execute(f"INSERT IGNORE INTO {_table(kind)} VALUES ({i}, {value})")
    cursor.execute(
        "SELECT table_name, column_name, column_type, COALESCE(character_set_name, '') FROM information_schema.columns "
        "WHERE table_schema = 'every_type' ORDER BY table_name, ordinal_position"
    )
    found: dict[str, list[tuple[str, str, str]]] = {}
    for table, *column in cursor.fetchall():
        found.setdefault(f"every_type.{table}", []).append((column[0], column[1], column[2]))
    return found


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _texts(block: Block, kind: Kind) -> dict[int, str | None]:
    """The block's values in the form of `kind.shown`; odd ones as they are."""
    after = block.struct("after")
    assert after is not None
    ids: list[int] = after["id"].to_pylist()
    values = dict(zip(ids, (_shown(v, kind, after["v"].type) for v in _scalars(after["v"])), strict=True))
    found = block.column("odd")
    for i, items in zip(ids, found.to_pylist() if found is not None else [None] * len(ids), strict=True):
        for item in items or []:
            assert (item["side"], item["column"]) == (Side.AFTER, 1)
            assert values[i] is None, "an odd value is null in its column"
            values[i] = item["text"]
    return values


def _scalars(array: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    return array.to_pylist()


def _shown(value: Any, kind: Kind, arrow: pa.DataType) -> str | None:
    if value is None:
        return None
    if pa.types.is_timestamp(arrow):
        digits = int(found[1]) if (found := re.search(r"\((\d)\)", kind.native)) else 0
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value)
        text = f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}"
        return text + (f".{moment.microsecond:06d}"[: digits + 1] if digits else "")
    if kind.shown == DOUBLE:
        return str(float(np.float32(value)) if arrow == pa.float32() else value)
    if isinstance(value, list):
        return np.array(value, np.float32).tobytes().hex().upper()
    if "HEX" in kind.shown:
        return (value if isinstance(value, bytes) else value.encode()).hex().upper()
    if isinstance(value, bool):
        return str(int(value))
    return format(value, "f") if kind.type.startswith("decimal") else str(value)
