"""The clickhouse sink against the real engine behind our HTTP front (a stand-in of the server, see its module)."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.support.changes import changes, column, delivery, structure
from tests.support.deliveries import by_table, make_deliveries, make_events
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, EnvironmentProblem, Poisoned, Refused
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.model.block import Op, Side
from tidemill.model.delivery import Delivery
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink

D = decimal.Decimal
INSERT, UPDATE, DELETE, TRUNCATE = Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE
ID = column("id", "bigint", pa.int64(), nullable=False)
NAME = column("name", "text", pa.string())
NOTE = column("note", "text", pa.string())
T = structure("t", ID, NAME, NOTE)


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouse]:
    with ClickHouse(password="secret") as running:
        yield running


@pytest.fixture
def database(server: ClickHouse) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield name
    server.start()
    server.query(f"DROP DATABASE IF EXISTS {name}")


class Bench:
    """A sink per worker, as after a restart, and the rows that a reader sees."""

    def __init__(self, server: ClickHouse, database: str) -> None:
        self.server = server
        self.database = database
        self._open: list[ClickHouseSink] = []

    def sink(self, **options: Any) -> ClickHouseSink:
        settings = {
            "id": "ch", "url": f"http://default:secret@127.0.0.1:{self.server.port}", "database": self.database,
            "connect_timeout_seconds": 2, **options,
        }  # fmt: skip
        self._open.append(ClickHouseSink(ClickHouseConfig(**settings)))
        return self._open[-1]

    def write(self, *deliveries: Delivery, **options: Any) -> None:
        sink = self.sink(**options)
        for each in deliveries:
            sink.write(each)

    def rows(self, what: str = "*", table: str = "t", tail: str = "FINAL ORDER BY id") -> list[dict[str, Any]]:
        columns = "* EXCEPT (_version, _is_deleted)" if what == "*" else what
        return self.server.query(f"SELECT {columns} FROM {self.database}.{table} {tail}")

    def types(self, table: str = "t") -> dict[str, str]:
        rows = self.server.query(
            f"SELECT name, type FROM system.columns WHERE database = '{self.database}' AND table = '{table}'"
        )
        return {row["name"]: row["type"] for row in rows}

    def close(self) -> None:
        for sink in self._open:
            sink.close()


@pytest.fixture
def bench(server: ClickHouse, database: str) -> Iterator[Bench]:
    made = Bench(server, database)
    yield made
    made.close()


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}


# Current rows


def test_inserts_updates_and_deletes_give_the_current_rows(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (INSERT, None, row(2)), (UPDATE, None, row(1, "b")), (DELETE, {"id": 2}, None),
        (INSERT, None, row(3, None)), (Op.READ, None, row(4)),
    )  # fmt: skip
    sink = bench.sink()
    receipt = sink.write(delivery(block))
    assert (receipt.events, receipt.skipped, receipt.ok) == (6, 0, True)
    assert receipt.bytes > 0
    assert bench.rows() == [row(1, "b"), row(3, None), row(4)]
    assert bench.rows("id, _version, _is_deleted", tail="WHERE id < 3 ORDER BY _version") == [
        {"id": 1, "_version": 2, "_is_deleted": 0}, {"id": 2, "_version": 3, "_is_deleted": 1},
    ]  # fmt: skip


def test_an_update_that_moves_a_row_to_another_key_leaves_nothing_under_the_old_one(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (UPDATE, {"id": 1}, row(9)))))
    assert bench.rows() == [row(9)]


def test_a_row_that_moves_away_and_back_is_there_once(bench: Bench) -> None:
    moves = changes(
        T, (INSERT, None, row(1)), (UPDATE, {"id": 1}, row(9, "x")), (UPDATE, {"id": 9}, row(1, "y")),
    )  # fmt: skip
    bench.write(delivery(moves))
    assert bench.rows() == [row(1, "y")]


def test_a_composite_key_in_any_order_of_columns_is_the_order_of_the_table(bench: Bench) -> None:
    lines = structure("t", NAME, ID, NOTE, key=("name", "id"))
    block = changes(lines, (INSERT, None, row(1, "a")), (INSERT, None, row(1, "b")), (UPDATE, None, row(1, "a", "z")))
    bench.write(delivery(block))
    assert bench.rows(tail="FINAL ORDER BY name") == [row(1, "a", "z"), row(1, "b")]


def test_a_truncate_removes_what_came_before_it_and_nothing_that_came_after(bench: Bench) -> None:
    block = changes(T, (INSERT, None, row(1)), (INSERT, None, row(2)), (TRUNCATE, None, None), (INSERT, None, row(3)))
    bench.write(delivery(block))
    assert bench.rows() == [row(3)]
    bench.write(delivery(block))  # a replay, in a new worker
    assert bench.rows() == [row(3)]


def test_messages_and_statements_leave_the_rows_alone(bench: Bench) -> None:
    block = changes(T, (Op.MESSAGE, None, None), (INSERT, None, row(1)), (Op.DDL, None, None))
    assert bench.sink().write(delivery(block)).events == 3
    assert bench.rows() == [row(1)]


def test_names_with_any_characters_are_taken_as_they_are(bench: Bench) -> None:
    odd = structure("o`r\\d 'e'rs", ID, column("sp ace`\\'ü", "text", pa.string()), column('"q"', "text", pa.string()))
    block = changes(odd, (INSERT, None, {"id": 1, "sp ace`\\'ü": "x'y\\z\t", '"q"': "quoted"}))
    bench.write(delivery(block), table="${source.schema}.${source.table}")
    (found,) = bench.server.query(f"SELECT * FROM {bench.database}.`public.o\\`r\\\\d 'e'rs`")
    assert (found["sp ace`\\'ü"], found['"q"']) == ("x'y\\z\t", "quoted")


# Replays


def test_a_replay_in_the_same_worker_and_in_a_new_one_changes_nothing(bench: Bench) -> None:
    batch = make_deliveries(make_events(100), 0, 100)
    sink = bench.sink()
    for each in batch:
        sink.write(each)
    count = "SELECT count() AS n, sum(_version) AS v FROM {}.{}"
    before = [bench.server.query(count.format(bench.database, t)) for t in ("orders", "customers")]
    assert before[0] == [{"n": 50, "v": sum(range(0, 100, 2))}]
    for again in (sink, bench.sink()):
        for each in batch:
            assert again.write(each).ok
    assert [bench.server.query(count.format(bench.database, t)) for t in ("orders", "customers")] == before


def test_a_batch_that_is_cut_and_dealt_anew_leaves_the_same_current_rows(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60))
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100, deal=by_table))
    (found,) = bench.rows("count() AS n, uniqExact(id) AS ids", "orders", "FINAL")
    assert found == {"n": 50, "ids": 50}


def test_a_lost_answer_is_met_by_the_token_of_the_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from clickhouse_connect.driver.exceptions import OperationalError

    sink, batch = bench.sink(mode="changelog"), delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    client = sink._open().client
    insert = client.raw_insert

    def lose(*args: Any, **options: Any) -> None:
        insert(*args, **options)
        raise OperationalError("the answer got lost")

    monkeypatch.setattr(client, "raw_insert", lose)
    with pytest.raises(DeliveryError) as caught:
        sink.write(batch)
    assert not isinstance(caught.value, Refused)
    monkeypatch.setattr(client, "raw_insert", insert)
    sink.write(batch)
    assert len(bench.rows("_offset", tail="")) == 2


def test_after_kill_9_of_the_server_the_batch_is_written_again(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    sink = bench.sink()
    sink.write(batch)
    bench.server.kill()
    with pytest.raises(DeliveryError) as caught:
        sink.write(delivery(changes(T, (INSERT, None, row(3)), first=2), start=2))
    assert not isinstance(caught.value, Refused)
    assert "secret" not in str(caught.value)
    bench.server.start()
    bench.write(batch, delivery(changes(T, (INSERT, None, row(3)), first=2), start=2))
    assert bench.rows() == [row(1), row(2), row(3)]


def test_large_deliveries_are_inserted_in_pieces_that_a_replay_repeats(bench: Bench) -> None:
    batch = make_deliveries(make_events(1000), 0, 1000, lanes=1)
    bench.write(*batch, max_insert_rows=64)
    parts = f"SELECT count() AS n FROM {bench.database}.orders"
    assert bench.server.query(parts) == [{"n": 500}]
    bench.write(*batch, max_insert_rows=64)
    assert bench.server.query(parts) == [{"n": 500}]


def test_a_batch_without_other_dead_letters_is_another_piece(bench: Bench) -> None:
    batch = delivery(changes(T, *((INSERT, None, row(i)) for i in range(6))))
    bench.write(batch.without([2]))
    bench.write(batch.without([3]))
    assert [r["id"] for r in bench.rows("id")] == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_brings_other_values_is_another_piece(bench: Bench) -> None:
    """As after a processor was changed and the checkpoint moved back."""
    bench.write(delivery(changes(T, (INSERT, None, row(1, "clear")))))
    bench.write(delivery(changes(T, (INSERT, None, row(1, "masked")))))
    assert bench.rows() == [row(1, "masked")]


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_rows_removed_by_hand_come_back_once_the_table_has_forgotten_the_tokens(bench: Bench, mode: str) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    bench.write(batch, mode=mode)
    table = f"{bench.database}.t"
    bench.server.query(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    bench.write(batch, mode=mode)
    count = f"SELECT count() AS n FROM {table}"
    assert bench.server.query(count) == [{"n": 0}], "the page says so"
    bench.server.query(f"ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 0")
    for _ in range(2):
        bench.write(batch, mode=mode)
    if mode == "upsert":
        assert bench.rows() == [row(1), row(2)]
    else:
        assert bench.server.query(count) == [{"n": 2}], "offsets are looked up while tokens are not heeded"
    bench.server.query(f"ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 10000")
    before = bench.server.query(count)
    for _ in range(2):
        bench.write(batch, mode=mode)
    assert mode == "upsert" or bench.server.query(count) == before


# Whose versions they are


def test_a_new_log_over_old_versions_is_refused_and_offset_base_is_the_way_out(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (UPDATE, None, row(1, "old")))))
    anew = delivery(changes(T, (UPDATE, None, row(1, "new")), position="9/"))
    with pytest.raises(Refused, match="another history"):
        bench.write(anew)
    assert bench.rows() == [row(1, "old")]
    bench.write(anew, offset_base=2)
    assert bench.rows() == [row(1, "new")]
    with pytest.raises(Refused, match="versions up to 2"):
        bench.write(anew, offset_base=1)


def test_the_same_log_from_its_beginning_is_taken(bench: Bench) -> None:
    first = delivery(changes(T, (INSERT, None, row(1)), (UPDATE, None, row(1, "b"))))
    bench.write(first, delivery(changes(T, (UPDATE, None, row(1, "c")), first=2), start=2))
    bench.write(first)
    assert bench.rows() == [row(1, "c")]


def test_events_from_before_the_first_one_are_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), first=50), start=50))
    with pytest.raises(Refused, match="before the first one"):
        bench.write(delivery(changes(T, (INSERT, None, row(2)), first=3), start=0, end=10))


def test_a_table_that_has_versions_of_nobody_known_is_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), first=7), start=7))
    bench.server.query(f"TRUNCATE TABLE {bench.database}._tidemill_history")
    with pytest.raises(Refused, match="versions up to 7 that this log did not write"):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))


@pytest.mark.parametrize(("offset", "expected"), [(0, "a"), (1, "new"), (2, "new")])
def test_a_dead_letter_that_comes_again_never_replaces_a_newer_row(bench: Bench, offset: int, expected: str) -> None:
    events: list[Any] = [(INSERT, None, row(1)), (INSERT, None, row(2)), (UPDATE, None, row(2, "b"))]
    bench.write(delivery(changes(T, *events, (UPDATE, None, row(2, "new")))).without([offset]))
    dead_letter = dataclasses.replace(
        delivery(changes(T, events[offset], first=offset), start=offset), redelivered=True
    )
    for _ in range(2):  # also when the first answer got lost
        assert bench.sink().write(dead_letter).ok
    assert bench.rows() == [row(1), row(2, "new")]
    assert expected in [found["name"] for found in bench.rows()]


def test_two_tables_or_pipelines_share_a_destination_only_when_told(bench: Bench) -> None:
    other = structure("u", ID, NAME, NOTE)
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), table="t")
    with pytest.raises(Refused, match=r"already written from public\.t"):
        bench.write(delivery(changes(other, (INSERT, None, row(2)), first=1), start=1), table="t")
    with pytest.raises(Refused, match="already written from"):
        bench.write(delivery(changes(T, (INSERT, None, row(2)), first=1), start=1, pipeline="other"))
    bench.write(delivery(changes(other, (INSERT, None, row(2)), first=1), start=1), table="t", shared_tables=True)
    assert bench.rows() == [row(1), row(2)]


def test_tables_of_other_columns_may_share_a_destination_and_neither_empties_it(bench: Bench) -> None:
    other = structure("u", ID, NAME, column("more", "text", pa.string()), version=2)
    options = {"table": "t", "shared_tables": True, "allow_destructive_ddl": True}
    sink = bench.sink(**options)
    for start in (0, 4):  # in turns, within a delivery and from one to the next
        ids = range(start, start + 4)
        sink.write(
            delivery(
                *(
                    changes(T, (INSERT, None, row(i)), first=i)
                    if i % 2 == 0
                    else changes(other, (INSERT, None, {"id": i, "name": "b", "more": "m"}), first=i)
                    for i in ids
                ),
                start=start,
            )
        )
    found = bench.rows("id, name, note, more")
    assert [(r["name"], r["note"], r["more"]) for r in found] == [("a", "n", None), ("b", None, "m")] * 4
    with pytest.raises(Poisoned) as caught:
        sink.write(delivery(changes(T, (TRUNCATE, None, None), first=8), start=8))
    assert "others share" in caught.value.reasons[8]
    assert len(bench.rows("id")) == 8


# Columns that the source did not send


def test_unchanged_columns_keep_the_value_that_is_there(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "long")), (INSERT, None, row(2, "b", None)))))
    later = changes(
        T, (UPDATE, None, row(1, "x", None)), (UPDATE, None, row(2, None, "z")), (UPDATE, None, row(2, "y", None)),
        (INSERT, None, row(3, "c", "fresh")), (UPDATE, None, row(3, "d", None)),
        first=2, unchanged={0: ["note"], 1: ["name"], 2: ["note"], 4: ["note"]},
    )  # fmt: skip
    bench.write(delivery(later, start=2))
    assert bench.rows() == [row(1, "x", "long"), row(2, "y", "z"), row(3, "d", "fresh")]
    bench.write(delivery(later, start=2))
    assert bench.rows() == [row(1, "x", "long"), row(2, "y", "z"), row(3, "d", "fresh")]


def test_an_unchanged_column_follows_a_row_to_its_new_key(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "long")))))
    moves = changes(
        T, (UPDATE, {"id": 1}, row(5, "b", None)), (UPDATE, {"id": 5}, row(6, "c", None)),
        first=1, unchanged={0: ["note"], 1: ["note"]},
    )  # fmt: skip
    bench.write(delivery(moves, start=1))
    assert bench.rows() == [row(6, "c", "long")]


def test_the_full_old_row_has_the_unchanged_value(bench: Bench) -> None:
    block = changes(T, (UPDATE, row(1, "a", "long"), row(1, "b", None)), unchanged={0: ["note"]})
    bench.write(delivery(block))
    assert bench.rows() == [row(1, "b", "long")]


def test_an_unchanged_column_of_a_row_that_nobody_has_is_poisoned_never_null(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, None, row(7, "x", None)), (DELETE, {"id": 1}, None),
        (UPDATE, None, row(1, "y", None)), unchanged={1: ["note"], 3: ["note"]},
    )  # fmt: skip
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1, 3}
    assert "did not send the unchanged columns" in caught.value.reasons[1]
    bench.write(delivery(block).without([1, 3]))
    assert bench.rows() == []


def test_a_replay_of_an_unchanged_column_after_the_row_was_deleted_changes_nothing(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, None, row(1, "b", None)), (DELETE, {"id": 1}, None), unchanged={1: ["note"]}
    )
    bench.write(delivery(block))
    tail = delivery(block.slice(1, 3), start=1)  # cut anew, so that the insert is not in it
    assert bench.sink().write(tail).skipped == 1
    assert bench.rows() == []


def test_unchanged_values_of_every_type_come_back_exact(bench: Bench) -> None:
    wide = structure(
        "t", column("id", "uuid", pa.string(), nullable=False), column("n", "integer", pa.int32()),
        column("big", "numeric(60,5)", pa.decimal256(60, 5)), column("raw", "bytea", pa.binary()),
        column("who", "uuid", pa.string()), column("at", "timestamp with time zone", pa.timestamp("us", "UTC")),
        column("doc", "jsonb", pa.string(), raw=True), column("tags", "text[]", pa.list_(pa.string()), nullable=False),
        column("list", "integer[]", pa.list_(pa.int32())),
    )  # fmt: skip
    key = str(uuid.UUID(int=5))
    values = {
        "id": key, "n": 1, "big": D("12345678901234567890.12345"), "raw": b"\x00\xff'", "who": str(uuid.UUID(int=7)),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC), "doc": '{"a": 1.50}',
        "tags": ["x", None, "y'z"], "list": [1, None],
    }  # fmt: skip
    bench.write(delivery(changes(wide, (INSERT, None, values))))
    columns = [c.name for c in wide.columns[2:]]
    before = bench.rows("* EXCEPT (_version, n, raw), hex(raw)")
    bench.write(delivery(changes(wide, (UPDATE, None, {"id": key, "n": 2}), first=1, unchanged={0: columns}), start=1))
    assert bench.rows("n") == [{"n": 2}]
    assert bench.rows("* EXCEPT (_version, n, raw), hex(raw)") == before
    assert before[0]["hex(raw)"] == "00FF27"


# Types

TYPES: list[tuple[str, pa.DataType, str, Any, Any]] = [
    ("boolean", pa.bool_(), "Bool", True, True),
    ("smallint", pa.int16(), "Int16", -32768, -32768),
    ("tinyint unsigned", pa.uint8(), "UInt8", 255, 255),
    ("bigint unsigned", pa.uint64(), "UInt64", 2**64 - 1, 2**64 - 1),
    ("bigint", pa.int64(), "Int64", -(2**63), -(2**63)),
    ("real", pa.float32(), "Float32", 0.5, 0.5),
    ("double precision", pa.float64(), "Float64", 1e300, 1e300),
    ("numeric(12,2)", pa.decimal128(12, 2), "Decimal(12, 2)", D("-9999999999.99"), "-9999999999.99"),
    ("numeric(76,3)", pa.decimal256(76, 3), "Decimal(76, 3)", D("9" * 73 + ".999"), "9" * 73 + ".999"),
    ("numeric", pa.string(), "String", "1.2300", "1.2300"),
    ("enum('a','b')", pa.string(), "LowCardinality(Nullable(String))", "b", "b"),
    ("public.mood", pa.string(), "String", "sad", "sad"),
    ("uuid", pa.string(), "UUID", str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    ("date", pa.date32(), "Date32", datetime.date(1900, 1, 1), "1900-01-01"),
    ("date", pa.date32(), "Date32", datetime.date(2299, 12, 31), "2299-12-31"),
    ("datetime", pa.timestamp("us"), "DateTime64(0, 'UTC')", datetime.datetime(2026, 1, 2), "2026-01-02 00:00:00"),
    ("datetime(3)", pa.timestamp("us"), "DateTime64(3, 'UTC')", datetime.datetime(2026, 1, 2, 0, 0, 0, 123000),
     "2026-01-02 00:00:00.123"),
    ("timestamp without time zone", pa.timestamp("us"), "DateTime64(6, 'UTC')",
     datetime.datetime(1900, 1, 1, 0, 0, 0, 1), "1900-01-01 00:00:00.000001"),
    ("timestamp(2) with time zone", pa.timestamp("us", "UTC"), "DateTime64(2, 'UTC')",
     datetime.datetime(2299, 12, 31, 23, 59, 59, 990000, datetime.UTC), "2299-12-31 23:59:59.99"),
    ("time without time zone", pa.time64("us"), "String", datetime.time(1, 2, 3, 4), "01:02:03.000004"),
    ("time", pa.duration("us"), "Int64", -datetime.timedelta(hours=838), -838 * 3_600_000_000),
    ("integer[]", pa.list_(pa.int32()), "String", [1, None], "[1,null]"),
]  # fmt: skip


def test_every_type_of_the_sources_is_exact_and_nullable(bench: Bench) -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    columns = [column(name, native, arrow) for name, (native, arrow, *_) in zip(names, TYPES, strict=True)]
    full = {"id": 1, **{name: case[3] for name, case in zip(names, TYPES, strict=True)}}
    bench.write(delivery(changes(structure("t", ID, *columns), (INSERT, None, full), (INSERT, None, {"id": 2}))))
    made = bench.types()
    for name, (native, _, kind, _, _) in zip(names, TYPES, strict=True):
        assert made[name] in (kind, f"Nullable({kind})"), native
    found, empty = bench.rows(f"{', '.join(names)}")
    for name, (native, *_, shown) in zip(names, TYPES, strict=True):
        assert found[name] == shown, native
    assert set(empty.values()) == {None}


def every_type() -> Delivery:
    names = [f"c{i}" for i in range(len(TYPES))]
    columns = [column(name, native, arrow) for name, (native, arrow, *_) in zip(names, TYPES, strict=True)]
    full = {name: case[3] for name, case in zip(names, TYPES, strict=True)}
    rows = [{"id": i, **(full if i % 3 else {})} for i in range(70)]
    events: list[tuple[Op, dict[str, Any] | None, dict[str, Any] | None]] = [(INSERT, None, each) for each in rows]
    events += [(UPDATE, {"id": 5}, {"id": 105, **full}), (DELETE, {"id": 6}, None), (UPDATE, None, {"id": 7})]
    return delivery(changes(structure("t", ID, *columns), *events))


TOKENS = """
import sys
from tests.sinks.test_clickhouse import every_type
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink
for mode in ("upsert", "changelog"):
    sink = ClickHouseSink(ClickHouseConfig(id="ch", url=sys.argv[1], database=f"{sys.argv[2]}_{mode}", mode=mode))
    sink._open().client.raw_insert = lambda *_, **more: print(more["settings"]["insert_deduplication_token"])
    sink.write(every_type())
    sink.close()
"""


def test_a_piece_has_the_same_token_in_every_process(bench: Bench) -> None:
    """Bytes that Arrow leaves as it found them, under NULLs for instance, must not get into it."""
    url, said = f"http://default:secret@127.0.0.1:{bench.server.port}", set()
    for fill in ("1", "254"):  # what malloc fills memory with
        environment = os.environ | {"MALLOC_PERTURB_": fill, "ARROW_DEFAULT_MEMORY_POOL": "system"}
        command = [sys.executable, "-c", TOKENS, url, bench.database]
        said.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    for mode in ("upsert", "changelog"):
        bench.server.query(f"DROP DATABASE {bench.database}_{mode}")
    (tokens,) = said
    assert len(tokens.splitlines()) == 2


def test_columns_of_the_key_are_not_nullable_and_others_as_at_the_source(bench: Bench) -> None:
    table = structure(
        "t", column("id", "integer", pa.int32()), column("n", "integer", pa.int32(), nullable=False), NAME
    )
    bench.write(delivery(changes(table, (INSERT, None, {"id": 1, "n": 2, "name": None}), (DELETE, {"id": 9}, None))))
    assert bench.types() == {
        "id": "Int32", "n": "Int32", "name": "Nullable(String)", "_version": "UInt64", "_is_deleted": "UInt8",
    }  # fmt: skip


def test_arrays_that_cannot_be_null_are_arrays_and_null_ones_only_when_told(bench: Bench) -> None:
    tags = column("tags", "numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), nullable=False)
    block = changes(structure("t", ID, tags), (INSERT, None, {"id": 1, "tags": [D("1.50"), None]}))
    bench.write(delivery(block))
    assert bench.types()["tags"] == "Array(Nullable(Decimal(5, 2)))"
    assert bench.rows("tags") == [{"tags": ["1.5", None]}]
    maybe = structure("m", ID, column("tags", "text[]", pa.list_(pa.string())))
    block = changes(maybe, (INSERT, None, {"id": 1, "tags": None}), (INSERT, None, {"id": 2, "tags": ["a"]}), first=1)
    bench.write(delivery(block, start=1), null_arrays="empty")
    assert bench.rows("tags", "m") == [{"tags": []}, {"tags": ["a"]}]


def test_json_is_text_or_the_json_type_and_what_that_cannot_take_is_named(bench: Bench) -> None:
    table = structure("t", ID, column("doc", "jsonb", pa.string(), raw=True))
    documents = ['{"a": {"b": [1, 2]}}', "[1]", None, ' \n{"z": "y"}', "7", "null", ' "{"', '{"a": 1, "a": 2}']
    block = changes(table, *((INSERT, None, {"id": i, "doc": d}) for i, d in enumerate(documents)))
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block), json_type="json")
    assert caught.value.reasons.keys() == {1, 4, 5, 6}
    assert caught.value.reasons[5] == 'column "doc" (jsonb): JSON takes objects only, and this is none'
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block).without([1, 4, 5, 6]), json_type="json")
    assert caught.value.reasons == {7: "ClickHouse refused the row: INCORRECT_DATA (117)"}
    bench.write(delivery(block).without([1, 4, 5, 6, 7]), json_type="json")
    assert bench.types()["doc"] == "Nullable(JSON)"
    assert bench.rows("id, doc.a.b AS b") == [{"id": 0, "b": [1, 2]}, {"id": 2, "b": None}, {"id": 3, "b": None}]


def test_values_that_the_type_cannot_hold_are_poisoned_all_at_once(bench: Bench) -> None:
    table = structure(
        "t", ID, column("day", "date", pa.date32()), column("at", "datetime(3)", pa.timestamp("us")),
        column("price", "numeric(5,2)", pa.decimal128(5, 2)), column("amount", "numeric", pa.string()),
        column("n", "integer", pa.int32(), nullable=False),
        column("days", "date[]", pa.list_(pa.date32()), nullable=False),
    )  # fmt: skip
    good = {"n": 1, "days": []}
    block = changes(
        table,
        (INSERT, None, {"id": 0, **good}),
        (INSERT, None, {"id": 1, "day": datetime.date(1899, 12, 31), **good}),
        (INSERT, None, {"id": 2, "at": datetime.datetime(2300, 1, 1), **good}),
        (INSERT, None, {"id": 3, "at": datetime.datetime(2026, 1, 1, 0, 0, 0, 1), **good}),
        (INSERT, None, {"id": 4, **good}),
        (INSERT, None, {"id": 5, **good}),
        (INSERT, None, {"id": 6, "days": []}),
        (INSERT, None, {"id": 7, "n": 1, "days": [datetime.date(2400, 1, 1)]}),
        odd={4: [(Side.AFTER, "price", "NaN")], 5: [(Side.AFTER, "amount", "NaN")]},
    )
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1, 2, 3, 4, 6, 7}
    assert caught.value.reasons[4] == 'column "price" (numeric(5,2)) has a value that Decimal(5, 2) cannot hold'
    assert "1899" not in str(caught.value)
    bench.write(delivery(block).without([1, 2, 3, 4, 6, 7]))
    assert bench.rows("id, amount") == [{"id": 0, "amount": None}, {"id": 5, "amount": "NaN"}]


UUID_TEXTS = {
    "0e0ec5a0-0000-4000-8000-00000000000a": True, "0E0EC5A0-0000-4000-8000-00000000000A": True,
    "0e0ec5a000004000800000000000000a": True, "nope": False, "": False, " 0e0ec5a0-0000-4000-8000-00000000000a": False,
    "0e0ec5a0-0000-4000-8000-00000000000g": False, "0e0ec5a0-0000-40008-000-00000000000a": False,
    "{0e0ec5a0-0000-4000-8000-0000000000}": False, "０e0ec5a0-0000-4000-8000-0000000000": False,
}  # fmt: skip


@pytest.mark.parametrize("nullable", [True, False])
def test_a_text_that_is_no_uuid_is_poisoned_never_null(bench: Bench, nullable: bool) -> None:
    who = column("who", "uuid", pa.string(), nullable=nullable)
    all_of_them = column("list", "uuid[]", pa.list_(pa.string()), nullable=False)
    good = str(uuid.UUID(int=7))
    rows: list[dict[str, Any]] = [{"who": text, "list": [good]} for text in UUID_TEXTS]
    rows += [{"who": good, "list": [None, text]} for text in UUID_TEXTS]
    rows += [{"who": None if nullable else good, "list": []}]
    block = changes(structure("t", ID, who, all_of_them), *((INSERT, None, {"id": i} | r) for i, r in enumerate(rows)))
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    wrong = [i for i, good in enumerate(2 * list(UUID_TEXTS.values())) if not good]
    assert list(caught.value.reasons) == wrong
    assert caught.value.reasons[3] == 'column "who" (uuid) has a value that UUID cannot hold'
    bench.write(delivery(block).without(wrong))
    found = bench.rows("who")
    assert found[0] == found[1] == found[2] == {"who": "0e0ec5a0-0000-4000-8000-00000000000a"}
    assert [r for r in found if r["who"] is None] == [{"who": None}] * nullable


def test_a_constraint_of_the_table_poisons_the_rows_that_violate_it(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(0)))))
    bench.server.query(f"ALTER TABLE {bench.database}.t ADD CONSTRAINT named CHECK name != 'bad'")
    names = ["bad" if i % 40 == 7 else "ok" for i in range(100)]
    block = changes(T, *((INSERT, None, row(i + 1, n)) for i, n in enumerate(names)), first=1)
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block, start=1))
    assert caught.value.reasons.keys() == {8, 48, 88}
    assert caught.value.reasons[8] == "ClickHouse refused the row: VIOLATED_CONSTRAINT (469)"
    bench.write(delivery(block, start=1).without([8, 48, 88]))
    assert len(bench.rows()) == 98


@pytest.mark.parametrize("bad", [1, 9, 19])
def test_a_row_of_any_piece_that_the_server_refuses_is_named(bench: Bench, bad: int) -> None:
    """Of the first piece, one in between and the last: a piece is refused while the next one is made."""
    bench.write(delivery(changes(T, (INSERT, None, row(0)))))
    bench.server.query(f"ALTER TABLE {bench.database}.t ADD CONSTRAINT named CHECK name != 'bad'")
    events = [(INSERT, None, row(i, "bad" if i == bad else "good")) for i in range(1, 20)]
    batch = delivery(changes(T, *events, first=1), start=1)
    with pytest.raises(Poisoned) as caught:
        bench.write(batch, max_insert_rows=4)
    assert list(caught.value.reasons) == [bad]
    bench.write(batch.without([bad]), max_insert_rows=4)
    assert len(bench.rows()) == 19


def test_a_key_of_nan_is_a_key(bench: Bench) -> None:
    table = structure("t", column("id", "double precision", pa.float64(), nullable=False), NAME)
    nan = float("nan")
    bench.write(delivery(changes(table, (INSERT, None, {"id": nan, "name": "a"}))))
    update = (UPDATE, {"id": nan, "name": "a"}, {"id": nan, "name": "b"})  # REPLICA IDENTITY FULL
    bench.write(delivery(changes(table, update, first=1), start=1))
    assert bench.rows("name") == [{"name": "b"}]


def test_a_decimal_in_a_column_of_text_has_all_of_its_places(bench: Bench) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(
        f"CREATE TABLE {bench.database}.t (id Int64, name Nullable(String), _version UInt64, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    table = structure("t", ID, column("name", "numeric(20,10)", pa.decimal128(20, 10)))
    values = [D("0"), D("0.0000000001"), D("-12.5"), None]
    bench.write(delivery(changes(table, *((INSERT, None, {"id": i, "name": v}) for i, v in enumerate(values)))))
    texts = ["0.0000000000", "0.0000000001", "-12.5000000000", None]
    assert [r["name"] for r in bench.rows("name")] == texts


def test_numbers_in_a_column_of_truth_values_stay_numbers(bench: Bench) -> None:
    bench.write(
        delivery(changes(structure("t", ID, column("f", "bit(1)", pa.bool_())), (INSERT, None, {"id": 1, "f": True})))
    )
    wider = structure("t", ID, column("f", "tinyint unsigned", pa.uint8()), version=2)
    bench.write(delivery(changes(wider, (INSERT, None, {"id": 2, "f": 200}), first=1), start=1))
    assert [r["f"] for r in bench.rows("f")] == [1, 200]


def test_an_unchanged_value_that_only_the_destination_can_hold_is_kept(bench: Bench) -> None:
    wide = structure("t", ID, NAME, column("n", "decimal(12,4)", pa.decimal128(12, 4)))
    narrow = structure("t", ID, NAME, column("n", "decimal(10,2)", pa.decimal128(10, 2)), version=2)
    bench.write(delivery(changes(wide, (INSERT, None, {"id": 1, "name": "a", "n": D("1.2345")}))))
    update = (UPDATE, None, {"id": 1, "name": "b"})
    bench.write(delivery(changes(narrow, update, first=1, unchanged={0: ["n"]}), start=1))
    assert bench.rows("name, toString(n) AS n") == [{"name": "b", "n": "1.2345"}]


def test_an_event_without_its_key_is_poisoned(bench: Bench) -> None:
    with pytest.raises(Poisoned, match="no value for the key"):
        bench.write(delivery(changes(T, (INSERT, None, row(1)), (DELETE, None, None))))


# Structure


def test_columns_that_come_change_and_are_renamed_are_followed(bench: Bench) -> None:
    first = structure("t", ID, column("n", "integer", pa.int32()), column("old", "text", pa.string()), NOTE)
    second = structure(
        "t", ID, column("n", "bigint", pa.int64()), column("new", "text", pa.string()),
        column("price", "numeric(12,2)", pa.decimal128(12, 2)), version=2, renamed=[("old", "new")],
    )  # fmt: skip
    old = {"id": 1, "n": 5, "old": "kept", "note": "x"}
    new = {"id": 2, "n": 2**40, "new": "v", "price": D("1.25")}
    sink = bench.sink()
    sink.write(delivery(changes(first, (INSERT, None, old))))
    sink.write(delivery(changes(second, (INSERT, None, new), first=1), start=1))
    assert bench.rows("id, n, new, note, price") == [
        {"id": 1, "n": 5, "new": "kept", "note": "x", "price": None},
        {"id": 2, "n": 2**40, "new": "v", "note": None, "price": "1.25"},
    ]
    bench.write(delivery(changes(second, (INSERT, None, new), first=1), start=1))
    assert bench.types()["note"] == "Nullable(String)"  # dropped at the source: it stays


def test_with_leave_dropped_columns_are_dropped_and_types_narrowed(bench: Bench) -> None:
    first = structure("t", ID, column("n", "bigint", pa.int64()), NOTE)
    second = structure("t", ID, column("n", "integer", pa.int32()), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "n": 5, "note": "x"}))))
    bench.server.query(f"ALTER TABLE {bench.database}.t ADD COLUMN theirs String DEFAULT 'mine'")
    block = changes(second, (INSERT, None, {"id": 2, "n": 6}), first=1)
    bench.write(delivery(block, start=1), allow_destructive_ddl=True)
    assert "note" not in bench.types()
    assert bench.types()["n"] == "Nullable(Int32)"
    assert bench.rows("id, n, theirs") == [{"id": 1, "n": 5, "theirs": "mine"}, {"id": 2, "n": 6, "theirs": "mine"}]


def test_decimals_that_change_both_ways_get_a_type_that_holds_both(bench: Bench) -> None:
    first = structure("t", ID, column("p", "numeric(12,2)", pa.decimal128(12, 2)))
    second = structure("t", ID, column("p", "numeric(10,4)", pa.decimal128(10, 4)), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "p": D("9999999999.99")}))))
    bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "p": D("999999.9999")}), first=1), start=1))
    assert bench.types()["p"] == "Nullable(Decimal(14, 4))"
    assert bench.rows("p") == [{"p": "9999999999.99"}, {"p": "999999.9999"}]


def test_a_column_that_becomes_text_takes_text_and_one_that_was_text_stays_it(bench: Bench) -> None:
    first = structure("t", ID, column("a", "integer", pa.int32()), column("b", "text", pa.string()))
    second = structure(
        "t", ID, column("a", "text", pa.string()), column("b", "numeric(5,2)", pa.decimal128(5, 2)), version=2
    )
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "a": 5, "b": "x"}))))
    bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "a": "y", "b": D("1.50")}), first=1), start=1))
    assert bench.rows("a, b") == [{"a": "5", "b": "x"}, {"a": "y", "b": "1.50"}]


def test_a_type_that_cannot_become_the_new_one_is_refused_with_what_to_do(bench: Bench) -> None:
    first = structure("t", ID, column("d", "date", pa.date32()))
    second = structure("t", ID, column("d", "integer", pa.int32()), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1, "d": None}))))
    with pytest.raises(Refused, match="does not fit the source") as caught:
        bench.write(delivery(changes(second, (INSERT, None, {"id": 2, "d": 5}), first=1), start=1))
    assert "allow_destructive_ddl" in caught.value.fix


def test_lanes_that_change_a_table_at_once_do_it_once(bench: Bench) -> None:
    first = structure("t", ID, NAME)
    second = structure("t", ID, column("renamed", "text", pa.string()), NOTE, version=2, renamed=[("name", "renamed")])
    bench.write(delivery(changes(first, (INSERT, None, {"id": 99, "name": "a"}))))
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(lane: int) -> None:
        block = changes(second, (INSERT, None, {"id": lane, "renamed": "b", "note": "n"}), first=1 + lane)
        start.wait()
        try:
            bench.write(delivery(block, start=1, end=5, lane=lane, lanes=4))
        except BaseException as error:  # noqa: BLE001  any failure of a lane fails the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [r["renamed"] for r in bench.rows("renamed")] == ["b"] * 4 + ["a"]


def test_a_batch_whose_transaction_changed_the_table_can_be_replayed(bench: Bench) -> None:
    first = structure("t", ID, NAME)
    second = structure("t", ID, column("label", "text", pa.string()), version=2, renamed=[("name", "label")])
    batch = delivery(
        changes(first, (INSERT, None, {"id": 1, "name": "a"})),
        changes(second, (INSERT, None, {"id": 2, "label": "b"}), first=7),
    )
    for _ in range(2):
        bench.write(batch)
        assert bench.rows("id, label") == [{"id": 1, "label": "a"}, {"id": 2, "label": "b"}]
    assert "name" not in bench.types()
    with pytest.raises(Refused, match="no longer has columns that older events bring: name"):
        bench.write(delivery(changes(first, (INSERT, None, {"id": 5, "name": "z"}), first=6), start=0))


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("CREATE TABLE {}.t (id Int64) ENGINE = MergeTree ORDER BY id", "has engine MergeTree"),
        ("CREATE TABLE {}.t (id Int64, name String, _version UInt64, _is_deleted UInt8) "
         "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY name", "is ordered by"),
    ],
)  # fmt: skip
def test_a_table_that_was_there_must_be_of_the_right_kind(bench: Bench, statement: str, complaint: str) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(statement.format(bench.database))
    with pytest.raises(Refused, match=complaint):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    checks = {c.name: c.outcome for c in bench.sink(table="t").doctor()}
    assert checks["table t"] is (Outcome.FAIL if "engine" in complaint else Outcome.PASS)


def test_after_a_new_log_the_structure_is_followed_anew(bench: Bench) -> None:
    later = structure("t", ID, NAME, NOTE, version=7)
    bench.write(delivery(changes(later, (INSERT, None, row(1)))))
    wider = structure("t", ID, NAME, NOTE, column("more", "text", pa.string()), version=1)
    block = changes(wider, (INSERT, None, {**row(2), "more": "x"}), position="9/")
    bench.write(delivery(block), offset_base=100)
    assert bench.rows("id, more") == [{"id": 1, "more": None}, {"id": 2, "more": "x"}]


def test_a_time_without_a_zone_is_not_written_where_the_server_would_shift_it(bench: Bench) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(
        f"CREATE TABLE {bench.database}.t (id Int64, at DateTime64(6), _version UInt64, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    table = structure("t", ID, column("at", "timestamp without time zone", pa.timestamp("us"), nullable=False))
    with pytest.raises(Refused, match="without a zone needs"):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1, "at": datetime.datetime(2026, 1, 1)}))))


def test_a_setting_that_does_not_exist_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))), settings={"no_such_setting": "1"})


@pytest.mark.parametrize(
    "name",
    ["async_insert", "wait_for_async_insert", "insert_deduplicate", "insert_deduplication_token",
     "max_insert_block_size", "input_format_null_as_default"],
)  # fmt: skip
def test_a_setting_that_the_sink_depends_on_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(ValidationError, match=f"leave them out: {name}"):
        bench.sink(settings={name: "1", "insert_quorum": "2"})


def test_reads_that_decide_what_is_written_ask_for_what_was_written_last(bench: Bench) -> None:
    """The engine takes the setting for every table; what it does among replicas cannot be seen with one."""
    sink = bench.sink()
    sink.write(delivery(changes(T, (INSERT, None, row(1)))))
    asked = sink._open().client.query("SELECT getSetting('select_sequential_consistency')").result_rows
    assert asked == [(1,)]


def test_a_table_made_by_hand_with_wider_types_is_taken(bench: Bench) -> None:
    bench.server.query(f"CREATE DATABASE {bench.database}")
    bench.server.query(
        f"CREATE TABLE {bench.database}.t (id Int128, name LowCardinality(Nullable(String)), extra UInt8 DEFAULT 7, "
        "_version UInt64, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    bench.write(
        delivery(changes(structure("t", ID, NAME), (INSERT, None, {"id": 1, "name": "a"}))), create_tables=False
    )
    assert bench.rows("name, extra") == [{"name": "a", "extra": 7}]
    with pytest.raises(Refused, match="does not exist") as caught:
        bench.write(
            delivery(changes(structure("new", ID), (INSERT, None, {"id": 1}), first=1), start=1), create_tables=False
        )
    assert "CREATE TABLE IF NOT EXISTS" in caught.value.fix


def test_a_table_without_a_key_is_refused_in_upsert_mode(bench: Bench) -> None:
    with pytest.raises(Refused, match="has no key") as caught:
        bench.write(delivery(changes(structure("t", ID, key=()), (INSERT, None, {"id": 1}))))
    assert "changelog" in caught.value.fix


# Changelog


def test_a_changelog_has_every_event_with_both_images(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, row(1), row(1, "b", None)), (DELETE, {"id": 1}, None),
        (TRUNCATE, None, None), unchanged={1: ["note"]},
    )  # fmt: skip
    bench.write(delivery(block), mode="changelog")
    rows = bench.rows(
        "_offset, _op, _position, _ordinal, _unchanged, before_id, before_name, after_id, after_name",
        tail="ORDER BY _offset",
    )
    assert [tuple(r.values()) for r in rows] == [
        (0, "insert", "0/0", 0, [], None, None, 1, "a"),
        (1, "update", "0/1", 1, ["note"], 1, "a", 1, "b"),
        (2, "delete", "0/2", 2, [], 1, None, None, None),
        (3, "truncate", "0/3", 3, [], None, None, None, None),
    ]


def test_a_changelog_takes_tables_without_a_key_and_columns_that_come_later(bench: Bench) -> None:
    first, second = structure("t", ID, key=()), structure("t", ID, NAME, key=(), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1}))), mode="changelog")
    bench.write(delivery(changes(second, (INSERT, None, {"id": 1, "name": "x"}), first=1), start=1), mode="changelog")
    assert bench.rows("after_name", tail="ORDER BY _offset") == [{"after_name": None}, {"after_name": "x"}]


def test_a_changelog_has_each_event_once_however_the_batch_is_cut_again(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60), mode="changelog")
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100), mode="changelog")
    bench.write(*make_deliveries(events, 0, 100), mode="changelog")
    (found,) = bench.rows("count() AS n, uniqExact(_offset) AS offsets", "orders", "")
    assert found == {"n": 50, "offsets": 50}


def test_a_changelog_shows_each_event_once_although_a_late_worker_wrote_it_again(bench: Bench) -> None:
    """Lane 3 of 4 looked what is there, and stalled; the batch was dealt to one lane, and the next one delivered."""
    events = make_events(200)
    late = bench.sink(mode="changelog")
    stalled, go, done = threading.Event(), threading.Event(), []

    def blocks() -> Iterator[Any]:
        yield from four[3].blocks()
        stalled.set()
        assert go.wait(60)

    four = make_deliveries(events, 0, 100, lanes=4)
    thread = threading.Thread(target=lambda: done.append(late.write(dataclasses.replace(four[3], blocks=blocks))))
    thread.start()
    assert stalled.wait(60)
    bench.write(*make_deliveries(events, 0, 100, lanes=1), *make_deliveries(events, 100, 200), mode="changelog")
    go.set()
    thread.join()
    assert done[0].events == 25
    for table in ("orders", "customers"):
        (found,) = bench.rows("count() AS n, uniqExact(_offset) AS offsets", table, "FINAL")
        assert found == {"n": 100, "offsets": 100}


def test_a_changelog_that_several_logs_share_keeps_events_with_the_same_offset(bench: Bench) -> None:
    one, other = structure("one", ID), structure("other", ID)
    options = {"mode": "changelog", "table": "all", "shared_tables": True}
    bench.write(delivery(changes(one, (INSERT, None, {"id": 1}))), id="a", **options)
    bench.write(delivery(changes(other, (INSERT, None, {"id": 2}), position="9/")), id="b", **options)
    assert len(bench.rows("_offset", "all", "")) == 2
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), mode="changelog")
    with pytest.raises(Refused, match="several logs have the same offsets"):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))), mode="changelog", shared_tables=True)


def test_a_truncate_that_comes_late_leaves_what_came_after_it(bench: Bench) -> None:
    """A look whether there is anything newer, and then TRUNCATE TABLE, would take what came in between."""
    truncate = delivery(changes(T, (TRUNCATE, None, None), first=1), start=1)
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), truncate)
    late = bench.sink()
    late.write(truncate)
    session = late._open()
    before = session.client.command

    def command(statement: str, **options: Any) -> Any:
        if "DELETE" in statement or "TRUNCATE" in statement:
            bench.write(delivery(changes(T, (INSERT, None, row(2)), first=2), start=2))
        return before(statement, **options)

    session.client.command = command
    late.write(truncate)
    assert bench.rows() == [row(2)]


def test_a_changelog_that_heeds_no_tokens_still_has_each_event_once(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    bench.write(batch, mode="changelog")
    bench.server.query(f"ALTER TABLE {bench.database}.t RESET SETTING non_replicated_deduplication_window")
    again = bench.sink(mode="changelog")
    later = delivery(changes(T, (INSERT, None, row(3)), first=2), start=2)
    for each in (batch, later, later):
        again.write(each)
    assert len(bench.rows("_offset", tail="")) == 3


# Around it


def test_doctor_says_what_it_found(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    checks = {c.name: c for c in bench.sink().doctor()}
    assert all(c.outcome is Outcome.PASS for c in checks.values())
    assert checks.keys() >= {"server", "database", "privileges", "table t"}
    wrong = ClickHouseSink(ClickHouseConfig(id="x", port=bench.server.port, password="wrong"))  # type: ignore[arg-type]
    (check,) = wrong.doctor()
    assert (check.outcome, check.fix) == (Outcome.FAIL, "Check user and password.")


def test_a_wrong_password_is_refused_and_not_repeated_in_the_error(bench: Bench) -> None:
    with pytest.raises(Refused, match="does not let us in") as caught:
        bench.write(
            delivery(changes(T, (INSERT, None, row(1)))), url=f"http://default:hush@127.0.0.1:{bench.server.port}"
        )
    assert "hush" not in str(caught.value)


def test_names_must_be_the_same_for_all_rows_of_a_table() -> None:
    with pytest.raises(ValueError, match="go to one table"):
        ClickHouseConfig(id="x", table="t_${after.region}")
    with pytest.raises(ValueError, match="must look like http"):
        ClickHouseConfig(id="x", url="clickhouse://host")


def test_the_stand_in_answers_errors_with_their_code(server: ClickHouse) -> None:
    with pytest.raises(EnvironmentProblem, match=r"Code: 60\."):
        server.query("SELECT * FROM nowhere")
