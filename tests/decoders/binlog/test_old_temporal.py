"""Temporal columns of MariaDB that have been there since before 10.1, with the server as the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pymysql
import pytest

from tests.decoders.binlog.kinds import KINDS, Kind
from tests.servers.mysql import private_server
from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.decoded import rows
from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.errors import DecodeError
from tidemill.lab.servers.mysql_family import Server

SEED = run_seed()
_TYPES = [kind for kind in KINDS if kind.native.startswith(("datetime", "timestamp", "time"))]


@pytest.fixture(scope="module")
def old() -> Iterator[Server]:
    with private_server("mariadb") as server:
        server.execute("SET GLOBAL mysql56_temporal_format = OFF", "CREATE DATABASE moments")
        yield server


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.native)
def test_a_value_in_the_old_format_reads_as_the_server_prints_it(old: Server, kind: Kind) -> None:
    db = pymysql.connect(host="127.0.0.1", port=old.port, user="root", autocommit=True)
    with db, db.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        cursor.execute(f"CREATE OR REPLACE TABLE moments.t (id int PRIMARY KEY, v {kind.type}, z text)")
        begin = end_of_binlog(old)
        for i, value in enumerate([*kind.values(random.Random(SEED)), "NULL"]):
            cursor.execute(f"INSERT IGNORE INTO moments.t VALUES ({i}, {value}, 'behind it')")
        cursor.execute("SELECT id, CAST(v AS CHAR), z FROM moments.t")
        shown = {i: (v, z) for i, v, z in cursor.fetchall()}
    stream = record(old, begin)
    known = {"moments.t": [("id", "int", ""), ("v", kind.native, ""), ("z", "text", "latin1")]}
    found = {}
    for event in rows(decode(stream, MapTables(known, flavor=Flavor.MARIADB), Flavor.MARIADB)):
        text = event.get("odd", {}).get("after.v") or _shown(event["after"]["v"], kind)
        found[event["after"]["id"]] = text, event["after"]["z"]
    assert found == shown, f"seed {SEED}"


@pytest.mark.parametrize("zero_dates", ["keep", "null"])
def test_a_fraction_that_nothing_tells_of_is_refused(old: Server, zero_dates: str) -> None:
    old.execute("CREATE OR REPLACE TABLE moments.u (id int PRIMARY KEY, v datetime(6))")
    begin = end_of_binlog(old)
    old.execute("INSERT INTO moments.u VALUES (1, '2024-02-29 23:59:58.123456')")
    with pytest.raises(DecodeError, match="does not follow it"):
        decode(record(old, begin), MapTables(flavor=Flavor.MARIADB), Flavor.MARIADB, zero_dates=zero_dates)


def _shown(value: str | None, kind: Kind) -> str | None:
    """A moment of Python in the server's words."""
    if value is None or kind.arrow == "string":
        return value
    whole, _, fraction = value.removesuffix("+00:00").replace("T", " ").partition(".")
    digits = int(kind.native[-2]) if kind.native.endswith(")") else 0
    return f"{whole}.{fraction.ljust(6, '0')[:digits]}" if digits else whole
