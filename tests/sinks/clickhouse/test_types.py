"""Every type is exact; what a type cannot hold is named."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import uuid
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.benches import DELETE, ID, INSERT, NAME, UPDATE, T, row
from tests.sinks.clickhouse.support import TYPES, Bench, D
from tests.support.changes import changes, column, delivery, structure
from tidemill.errors import Poisoned
from tidemill.model.block import Side


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


TOKENS = """
import sys
from tests.sinks.clickhouse.support import every_type
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
