"""JSON documents against their oracle: Python's own view of the same block, and NumPy's of dates beyond datetime."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.blocks import make_block, make_rows, make_table
from tidemill.errors import Refused
from tidemill.formats.json import JsonFormat
from tidemill.model.block import COMMIT_TIME, META, ODD, POSITION, UNCHANGED, Block, Op, Side
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

WIDEST = decimal.Context(prec=80)


def documents(block: Block, envelope: str = "native", source: str = "orders") -> list[dict[str, Any]]:
    return [json.loads(d.as_py()) for d in JsonFormat(envelope).encode(block, source)]


def block_of(arrays: dict[str, pa.Array], forms: dict[str, JsonForm] | None = None, **extra: pa.Array) -> Block:
    """Inserts with these columns, one transaction of its own per row."""
    forms, rows = forms or {}, len(next(iter(arrays.values())))
    columns = tuple(Column(n, DataType("x", a.type, forms.get(n, JsonForm.STRING))) for n, a in arrays.items())
    table = Table("shop", "public", "things", columns, version=1, sequence=7).with_fingerprint()
    fields = {
        "offset": pa.array(range(rows), pa.uint64()),
        "op": pa.array([int(Op.INSERT)] * rows, pa.uint8()),
        "position": pa.array([f"0/{i + 1:X}" for i in range(rows)], pa.string()).dictionary_encode().cast(POSITION),
        "tx_id": pa.array(range(rows), pa.uint64()),
        "ordinal": pa.array([0] * rows, pa.uint32()),
        "commit_time": pa.array([0] * rows, pa.int64()).cast(COMMIT_TIME),
        "after": pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays)),
        **extra,
    }
    return Block(table, pa.record_batch(list(fields.values()), names=list(fields)))


def shown(array: pa.Array, form: JsonForm = JsonForm.STRING) -> list[Any]:
    """What a consumer reads for each value of a column."""
    return [d["after"]["c"] for d in documents(block_of({"c": array}, {"c": form}))]


def text_of(array: pa.Array, form: JsonForm = JsonForm.STRING) -> list[str]:
    """The value as it stands in the document, undecoded."""
    encoded = JsonFormat().encode(block_of({"c": array}, {"c": form}), "orders")
    return [d.as_py().decode().split('"after":{"c":')[1].split('},"size_bytes"')[0] for d in encoded]


def plain(value: Any) -> Any:
    """The oracle: a Python value as docs/events.md says JSON shows it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case decimal.Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime():
            return value.strftime("%4Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
        case datetime.date():
            return value.isoformat()
        case datetime.time():
            return value.isoformat("microseconds")
        case list():
            return [plain(v) for v in value]
        case dict():
            return {k: plain(v) for k, v in value.items()}
    raise AssertionError(type(value))


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: WIDEST.scaleb(n, -scale))


DATETIMES = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.text('ab"\\\n\t\0\x1f\x7f ü😀', max_size=40)
VALUES: list[tuple[pa.DataType, JsonForm, st.SearchStrategy[Any]]] = [
    (pa.bool_(), JsonForm.BOOL, st.booleans()),
    *((kind, JsonForm.NUMBER, st.integers(int(np.iinfo(n).min), int(np.iinfo(n).max))) for kind, n in (
        (pa.int8(), np.int8), (pa.int16(), np.int16), (pa.int32(), np.int32), (pa.int64(), np.int64),
        (pa.uint8(), np.uint8), (pa.uint16(), np.uint16), (pa.uint32(), np.uint32), (pa.uint64(), np.uint64),
    )),
    (pa.float64(), JsonForm.NUMBER, st.floats()),
    (pa.decimal128(12, 2), JsonForm.STRING, decimals(12, 2)),
    (pa.decimal128(38, 0), JsonForm.STRING, decimals(38, 0)),
    (pa.decimal128(38, 37), JsonForm.STRING, decimals(38, 37)),
    (pa.decimal256(76, 30), JsonForm.STRING, decimals(76, 30)),
    (pa.string(), JsonForm.STRING, TEXTS),
    (pa.large_string(), JsonForm.STRING, TEXTS),
    (pa.binary(), JsonForm.BASE64, st.binary(max_size=20)),
    (pa.large_binary(), JsonForm.BASE64, st.binary(max_size=20)),
    (pa.date32(), JsonForm.STRING, st.dates()),
    (pa.time64("us"), JsonForm.STRING, st.times()),
    (pa.timestamp("us"), JsonForm.STRING, DATETIMES),
    (pa.timestamp("us", "UTC"), JsonForm.STRING, DATETIMES.map(lambda d: d.replace(tzinfo=datetime.UTC))),
    (pa.dictionary(pa.int32(), pa.string()), JsonForm.STRING, st.sampled_from(["sad", "ok", 'hap"py'])),
    (pa.list_(pa.int32()), JsonForm.ARRAY, st.lists(st.none() | st.integers(-5, 5), max_size=4)),
    (pa.list_(pa.string()), JsonForm.ARRAY, st.lists(st.none() | TEXTS, max_size=4)),
    (pa.large_list(pa.binary()), JsonForm.ARRAY, st.lists(st.binary(max_size=5), max_size=3)),
    (
        pa.list_(pa.list_(pa.float64())), JsonForm.ARRAY,
        st.lists(st.none() | st.lists(st.none() | st.floats(), max_size=3), max_size=3),
    ),
    (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.date32()))]), JsonForm.STRING,
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.lists(st.dates(), max_size=2)}),
    ),
]  # fmt: skip


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, list[dict[str, Any] | None], list[list[str]]]:
    """A block, what `after` should show for each row, and which columns are unchanged in it."""
    chosen = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=6))
    names = draw(st.lists(TEXTS.filter(bool), min_size=len(chosen), max_size=len(chosen), unique=True))
    rows = draw(st.integers(0, 8))
    data = {
        n: draw(st.lists(st.none() | v[2], min_size=rows, max_size=rows)) for n, v in zip(names, chosen, strict=True)
    }
    gone = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    left_out = [draw(st.sets(st.sampled_from(range(len(names))), max_size=2)) for _ in range(rows)]
    odd = [draw(st.dictionaries(st.sampled_from(range(len(names))), TEXTS, max_size=2)) for _ in range(rows)]
    arrays = {n: pa.array(data[n], v[0]) for n, v in zip(names, chosen, strict=True)}
    extra = {
        "after": pa.StructArray.from_arrays(list(arrays.values()), names=names, mask=pa.array(gone, pa.bool_())),
        "unchanged": pa.array([sorted(c) or None for c in left_out], UNCHANGED),
        "odd": pa.array(
            [[{"side": int(Side.AFTER), "column": c, "text": t} for c, t in row.items()] or None for row in odd], ODD
        ),
    }
    block = block_of(arrays, {n: v[1] for n, v in zip(names, chosen, strict=True)}, **extra)
    expected: list[dict[str, Any] | None] = [
        None if gone[row] else {
            n: odd[row].get(i, plain(arrays[n][row].as_py())) for i, n in enumerate(names) if i not in left_out[row]
        }
        for row in range(rows)
    ]  # fmt: skip
    start = draw(st.integers(0, rows))
    return block.slice(start, rows), expected[start:], [[names[c] for c in sorted(cs)] for cs in left_out[start:]]


@pytest.mark.slow  # hundreds of examples
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks())
def test_every_document_reads_back_as_the_rows_of_the_block(
    case: tuple[Block, list[dict[str, Any] | None], list[list[str]]],
) -> None:
    block, expected, unchanged = case
    got = documents(block)
    assert [d["after"] for d in got] == expected
    assert [d.get("unchanged", []) for d in got] == unchanged
    assert [d["offset"] for d in got] == block.batch.column("offset").to_pylist()
    shown = documents(block, "debezium")
    for document, want, names in zip(shown, expected, unchanged, strict=True):
        assert document["after"] == (
            None if want is None else want | dict.fromkeys(names, "__debezium_unavailable_value")
        )
    lines = JsonFormat().batch(block, "orders").to_pybytes()
    assert [json.loads(line) for line in lines.splitlines()] == got if b"\n" in lines else not got


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_have_the_digits_python_gives_them(values: list[float]) -> None:
    got = text_of(pa.array(values, pa.float64()), JsonForm.NUMBER)
    assert [float(t) for t in got] == values
    assert [_digits(t) for t in got] == [_digits(repr(v)) for v in values]
    assert [math.copysign(1, json.loads(t)) for t in got] == [math.copysign(1, v) for v in values]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1))
def test_single_precision_floats_have_their_own_shortest_digits(values: list[float]) -> None:
    array = pa.array(values, pa.float32())
    for text, value in zip(text_of(array, JsonForm.NUMBER), array.to_numpy(), strict=True):
        if np.isfinite(value):
            assert np.float32(text) == value
            assert _digits(text) == _digits(np.format_float_scientific(value, unique=True))


def _digits(text: str) -> str:
    return text.lower().split("e")[0].replace(".", "").strip("-0")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1))
def test_timestamps_of_any_year_are_iso_8601_with_astronomical_years(values: list[int]) -> None:
    expected = [_numpy_text(np.datetime64(v, "us")) for v in values]
    assert shown(pa.array(values, pa.timestamp("us"))) == expected
    assert shown(pa.array(values, pa.timestamp("us", "UTC"))) == [e + "Z" for e in expected]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_dates_of_any_year_are_iso_8601_with_astronomical_years(values: list[int]) -> None:
    assert shown(pa.array(values, pa.date32())) == [_numpy_text(np.datetime64(v, "D")) for v in values]


def _numpy_text(value: np.datetime64) -> str:
    # NumPy leaves out the plus of years beyond 9999, and counts the minus as one of the four digits.
    year, rest = str(value).lstrip("-").split("-", 1)
    sign = "-" if str(value).startswith("-") else "+" if len(year) > 4 else ""
    return f"{sign}{year:0>4}-{rest}"


def test_the_ides_of_march_44_bc_fall_in_year_minus_43() -> None:
    assert shown(pa.array([-735160], pa.date32())) == ["-0043-03-15"]
    assert shown(pa.array([-719529, 2932897], pa.date32())) == ["-0001-12-31", "+10000-01-01"]


def test_the_end_of_a_day_is_a_time_of_its_own() -> None:
    assert shown(pa.array([86_400_000_000, 0], pa.int64()).view(pa.time64("us"))) == [
        "24:00:00.000000", "00:00:00.000000",
    ]  # fmt: skip


def test_numbers_that_json_has_not_are_strings_and_floats_are_seen_to_be_floats() -> None:
    values = [math.nan, math.inf, -math.inf, 1.0, -0.0, 1e16, 1.5e-7, 1e15]
    assert text_of(pa.array(values, pa.float64()), JsonForm.NUMBER) == [
        '"NaN"', '"Infinity"', '"-Infinity"', "1.0", "-0.0", "1e+16", "1.5e-7", "1000000000000000.0",
    ]  # fmt: skip


def test_decimals_are_plain_whatever_their_scale() -> None:
    tiny = pa.array([decimal.Decimal("1E-38"), decimal.Decimal("-1E-38")], pa.decimal128(38, 38))
    assert shown(tiny) == ["0." + "0" * 37 + "1", "-0." + "0" * 37 + "1"]
    assert shown(pa.array([decimal.Decimal("12E+4"), None, decimal.Decimal(0)], pa.decimal128(5, -3)))[0] == "120000"
    least = decimal.Decimal(-(2**127 - 1) // 10)
    assert shown(pa.array([least], pa.decimal128(38, 0))) == [str(least)]


def test_json_columns_are_embedded_as_they_stand_on_one_line() -> None:
    raw = ['{"b" : 1,\n\t"a":[1.50,\r\n"x\\ny — ü"]}', "null", '"s"', "12345678901234567890.123456789", None]
    assert text_of(pa.array(raw), JsonForm.RAW) == [
        '{"b" : 1,  "a":[1.50,  "x\\ny — ü"]}', "null", '"s"', "12345678901234567890.123456789", "null",
    ]  # fmt: skip


def test_only_what_json_forbids_is_escaped() -> None:
    every = "".join(map(chr, range(0x250))) + "\u2028😀/"
    (text,) = text_of(pa.array([every]))
    assert json.loads(text) == every
    assert text == json.dumps(every, ensure_ascii=False).replace("\x7f", "\x7f")


def test_a_string_larger_than_the_first_buffer_makes_it_grow() -> None:
    values = ["x", "\0" * 3_000_000, "y" * 5_000_000, '"' * 100, None]
    assert shown(pa.array(values)) == values


def test_a_column_of_a_type_without_a_json_form_is_refused_by_name() -> None:
    odd = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(Refused, match="month_day_nano_interval has no JSON form"):
        shown(odd)


def test_an_event_has_the_fields_of_the_contract() -> None:
    block = make_block(4, ops=[Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE], positions="16/B374D848")
    insert, update, delete, truncate = documents(block)
    assert insert | {"after": None} == {
        "event_id": "orders:16/B374D848:0", "source_id": "orders", "database": "shop", "schema": "public",
        "table": "orders", "op": "insert", "tx_id": 700, "position": "16/B374D848", "ordinal": 0, "offset": 0,
        "timestamp": "2026-01-01T00:00:00.000700Z", "schema_version": block.table.fingerprint, "schema_sequence": 1,
        "checkpoint": {"position": "16/B374D848"}, "ddl": None, "before": None, "after": None,
        "size_bytes": 155,
    }  # fmt: skip
    assert (update["before"], update["after"]["id"]) == ({"id": 1}, 1)
    assert (delete["before"], delete["after"], delete["op"]) == ({"id": 2}, None, "delete")
    assert (truncate["before"], truncate["after"], truncate["op"]) == (None, None, "truncate")


def test_size_bytes_is_the_size_of_the_two_images() -> None:
    block = make_block(3, table=make_table(identity="full"), ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
    for text in JsonFormat().encode(block, "orders").to_pylist():
        images = text.split(b'"before":')[1].split(b',"size_bytes"')[0]
        assert json.loads(text)["size_bytes"] == len(images) - len(b',"after":')


def test_the_whole_old_row_is_shown_where_the_source_sent_it_and_the_key_elsewhere() -> None:
    full = make_block(3, table=make_table(identity="full"), ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
    keyed = make_block(3, ops=[Op.INSERT, Op.DELETE, Op.UPDATE])
    some = pa.array([False, False, True])
    key = pa.compute.if_else(some, keyed.batch.column("key"), None)
    before = pa.compute.if_else(some, None, full.batch.column("before"))
    batch = full.batch.set_column(full.batch.schema.get_field_index("before"), "before", before)
    mixed = Block(full.table, batch.append_column("key", key))
    first, second, third = documents(mixed)
    assert first["before"] is None
    assert second["before"] == second["after"]
    assert third["before"] == {"id": 2}


def test_the_debezium_envelope_has_its_postgresql_fields() -> None:
    block = make_block(2, ops=[Op.READ, Op.UPDATE], positions=["16/B374D848", "0/1"])
    first, second = documents(block, "debezium")
    assert first["source"] == {
        "version": "0.1.0", "connector": "postgresql", "name": "orders", "ts_ms": 1767225600000,
        "ts_us": 1767225600000700, "ts_ns": 1767225600000700000, "snapshot": "true", "db": "shop",
        "sequence": '["97500059720","0"]', "schema": "public", "table": "orders", "txId": 700,
        "lsn": 97500059720, "xmin": None, "origin": None, "origin_lsn": None,
    }  # fmt: skip
    assert list(first) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert (first["op"], second["op"], second["source"]["lsn"], second["source"]["snapshot"]) == ("r", "u", 1, "false")


def test_a_logical_message_stands_in_its_own_field_of_the_debezium_envelope() -> None:
    arrays = {"prefix": pa.array(["audit"]), "content": pa.array([b"\0hi"])}
    block = block_of(arrays, {"content": JsonForm.BASE64}, op=pa.array([int(Op.MESSAGE)], pa.uint8()))
    (document,) = documents(block, "debezium")
    assert (document["op"], document["message"]) == ("m", {"prefix": "audit", "content": "AGhp"})
    assert not {"before", "after"} & document.keys()
    assert documents(block)[0]["after"] == document["message"]


def test_a_position_that_is_no_lsn_has_no_number() -> None:
    block = make_block(3, positions=["0/10", "0/", "/1"])
    assert [d["source"]["lsn"] for d in documents(block, "debezium")] == [16, None, None]


def test_keys_come_from_the_newest_image_and_are_null_where_there_is_none() -> None:
    block = make_block(4, ops=[Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE], first_id=5)
    assert JsonFormat().encode_key(block).to_pylist() == [b'{"id":5}', b'{"id":6}', b'{"id":7}', None]
    composite = make_block(1, table=make_table(key=("customer", "id")))
    assert JsonFormat().encode_key(composite).to_pylist() == ['{"customer":"customer 0 — Zürich","id":0}'.encode()]
    assert JsonFormat().encode_key(make_block(2, table=make_table(key=()))).to_pylist() == [None, None]


def test_what_stands_under_a_null_image_is_nobodys_key() -> None:
    block = make_block(2, ops=[Op.INSERT, Op.DELETE])
    rows = make_rows(block.table, [7, 8])
    hidden = pa.StructArray.from_arrays(rows.flatten(), fields=list(rows.type), mask=pa.array([False, True]))
    columns = [hidden if name == "after" else block.batch.column(name) for name in block.batch.schema.names]
    shown = Block(block.table, pa.record_batch(columns, schema=block.batch.schema))
    assert JsonFormat().encode_key(shown).to_pylist() == [b'{"id":7}', b'{"id":1}']


def test_a_key_that_its_type_cannot_hold_is_its_exact_text_and_one_left_out_is_the_old_one() -> None:
    column = Column("day", DataType("date", pa.date32(), JsonForm.STRING))
    table = Table("shop", "public", "days", (column,), ("day",), version=1).with_fingerprint()
    day = datetime.date(2026, 1, 1)
    kind = pa.struct([("day", pa.date32())])
    extra = {
        "key": pa.array([{"day": day}, {"day": day}, {"day": None}], kind),
        "after": pa.array([{"day": None}, {"day": None}, None], kind),
        "unchanged": pa.array([None, [0], None], UNCHANGED),
        "odd": pa.array([
            [{"side": 2, "column": 0, "text": "infinity"}], None, [{"side": 0, "column": 0, "text": "-infinity"}],
        ], ODD),
    }  # fmt: skip
    base = make_block(3).batch.select(META.names)
    block = Block(table, pa.record_batch([*base.columns, *extra.values()], names=[*META.names, *extra]))
    assert JsonFormat().encode_key(block).to_pylist() == [
        b'{"day":"infinity"}', b'{"day":"2026-01-01"}', b'{"day":"-infinity"}',
    ]  # fmt: skip
    assert [d["after"] for d in documents(block)] == [{"day": "infinity"}, {}, None]
    assert [d["before"] for d in documents(block)] == [
        {"day": "2026-01-01"},
        {"day": "2026-01-01"},
        {"day": "-infinity"},
    ]


def test_what_all_rows_of_a_block_share_is_written_as_where_they_differ() -> None:
    """As rows of a snapshot's chunk share their position and time, and have no transaction."""

    def block(positions: list[str], transactions: list[int | None], times: list[int]) -> Block:
        return block_of(
            {"c": pa.array(range(3), pa.int32())},
            position=pa.array(positions).dictionary_encode().cast(POSITION),
            tx_id=pa.array(transactions, pa.uint64()), commit_time=pa.array(times, pa.int64()).cast(COMMIT_TIME),
        )  # fmt: skip

    place = 'snapshot:1/public."odd"/7'
    for envelope in ("native", "debezium", "cloudevents"):
        alike = JsonFormat(envelope).encode(block([place] * 3, [None] * 3, [1_700_000_000_000_001] * 3), "orders")
        mixed = JsonFormat(envelope).encode(
            block([place, place, "0/5"], [None, None, 9], [*[1_700_000_000_000_001] * 2, 5]), "orders"
        )
        assert alike[:2].equals(mixed[:2])
    (*_, last) = documents(block([place] * 3, [None] * 3, [1_700_000_000_000_001] * 3))
    assert (last["position"], last["tx_id"], last["after"]) == (place, None, {"c": 2})
    assert last["event_id"].startswith(f"orders:{place}:")


def test_the_same_block_gives_the_same_bytes_whole_or_in_slices() -> None:
    block = make_block(50, ops=[Op(1 + i % 3) for i in range(50)], positions=[f"0/{i // 7:X}" for i in range(50)])
    for envelope in ("native", "debezium"):
        whole = JsonFormat(envelope).encode(block, "orders").to_pylist()
        slices = [block.slice(i, i + 7) for i in range(0, 50, 7)]
        assert whole == [d for part in slices for d in JsonFormat(envelope).encode(part, "orders").to_pylist()]
