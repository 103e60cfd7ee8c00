"""What values of columns look like in a script of the processor `javascript`, and what comes back of them."""

from __future__ import annotations

import datetime
import decimal
import re
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.processors.scripts import Make, after, big, run, script
from tests.support.blocks import make_block, make_table
from tidemill.errors import ProcessingError
from tidemill.model.block import ODD, UNCHANGED, Op
from tidemill.model.derived import with_column
from tidemill.model.types import JsonForm
from tidemill.stream.lane.chain import Chain

pytestmark = pytest.mark.slow
__all__ = ["script"]  # a fixture


@pytest.mark.parametrize("integers", ["auto", "bigint"])
def test_integers_beyond_2_to_the_53_lose_no_digit(script: Make, integers: str) -> None:
    block = big([2**53 + 1, -(2**63), 5, None], pa.int64(), "bigint")
    add = "BigInt(ev.after.v) + 1n" if integers == "bigint" else "String(BigInt(ev.after.v) + 1n)"
    source = f"function process(ev) {{ if (ev.after.v !== null) ev.after.v = {add}; return ev; }}"
    [made] = run(script(source, integers=integers), block)
    assert [row["v"] for row in after(made)] == [2**53 + 2, -(2**63) + 1, 6, None]
    [same] = run(script("function process(ev) { ev.after = {...ev.after}; return ev; }", integers=integers), block)
    assert same.batch.equals(block.batch)


def test_unsigned_64_bits_lose_no_digit(script: Make) -> None:
    block = big([2**64 - 1, 7], pa.uint64(), "bigint unsigned")
    [made] = run(script("function process(ev) { ev.after.v = String(BigInt(ev.after.v) - 1n); return ev; }"), block)
    assert [row["v"] for row in after(made)] == [2**64 - 2, 6]


def test_decimals_are_exact_strings_and_a_number_is_rounded_to_the_scale(script: Make) -> None:
    values = [decimal.Decimal("12345678901234567890.12"), decimal.Decimal("1.10")]
    block = big(values, pa.decimal128(38, 2), "numeric(38,2)", JsonForm.STRING)
    source = """function process(ev) {
      ev.after.v = ev.after.v === "12345678901234567890.12" ? "-98765432109876543210.99" : 0.1 + 0.2;
      return ev;
    }"""
    [made] = run(script(source), block)
    assert [row["v"] for row in after(made)] == [decimal.Decimal("-98765432109876543210.99"), decimal.Decimal("0.30")]


def test_json_columns_are_objects_and_keep_their_text_unless_changed(script: Make) -> None:
    texts = ['{"a": 1,  "big": 12345678901234567890}', '{"a": 2}', None]
    block = big(texts, pa.string(), "jsonb", JsonForm.RAW)
    source = "function process(ev) { if (ev.after.v && ev.after.v.a === 2) ev.after.v.b = [true]; return ev; }"
    [made] = run(script(source), block)
    assert [row["v"] for row in after(made)] == [texts[0], '{"a":2,"b":[true]}', None]


def test_lists_times_and_bytes_can_be_set(script: Make) -> None:
    cases: list[tuple[list[Any], pa.DataType, str, str, Any]] = [
        ([[1, 2]], pa.list_(pa.int32()), "integer[]", "ev.after.v.push(3)", [1, 2, 3]),
        ([b"ab"], pa.binary(), "bytea", "ev.after.v = 'AAE='", b"\x00\x01"),
        ([datetime.date(2026, 1, 1)], pa.date32(), "date", "ev.after.v = '2024-02-29'", datetime.date(2024, 2, 29)),
        ([None], pa.timestamp("us"), "timestamp", "ev.after.v = new Date(0)", datetime.datetime(1970, 1, 1)),
    ]
    for values, kind, native, change, expected in cases:
        form = JsonForm.BASE64 if native == "bytea" else JsonForm.ARRAY if "[]" in native else JsonForm.STRING
        [made] = run(script(f"function process(ev) {{ {change}; return ev; }}"), big(values, kind, native, form))
        assert after(made)[0]["v"] == expected


def test_text_of_every_plane_survives_both_ways(script: Make) -> None:
    block = big(["naïve", "日本", "😀x", "", "plain"], pa.string(), "text", JsonForm.STRING)
    [made] = run(
        script("function process(ev) { ev.after.v = ev.after.v + '|😀é' + ev.after.v.length; return ev; }"), block
    )
    assert [row["v"] for row in after(made)] == ["naïve|😀é5", "日本|😀é2", "😀x|😀é3", "|😀é0", "plain|😀é5"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(script: Make) -> None:
    [made] = run(script("function process(ev) { ev.after.note = 'a\\ud800b'; return ev; }"), make_block(1))
    assert after(made)[0]["note"] == "a\ufffdb"


def test_half_a_surrogate_pair_in_json_and_in_headers_becomes_it_too(script: Make) -> None:
    r"""V8 would write it as the escape \ud800, which strict parsers refuse; what only looks like it stays."""
    source = r"""function process(ev) {
      ev.after.more = {a: "x\ud800", "\udc00": ["\\ud800", "\ud83d\ude00", "\u0007"]};
      return ev.route({headers: {h: "y\udfff"}});
    }"""
    [made] = run(script(source), make_block(1))
    assert orjson.loads(after(made)[0]["more"]) == {"a": "x\ufffd", "\ufffd": ["\\ud800", "\U0001f600", "\x07"]}
    assert made.batch.column("route").to_pylist()[0]["headers"] == [("h", "y\ufffd")]


def test_unchanged_columns_are_absent_and_stay_unchanged_unless_written(script: Make) -> None:
    block = make_block(2, ops=Op.UPDATE)
    note = [c.name for c in block.table.columns].index("note")
    block = with_column(block, "unchanged", pa.array([[note], [note]], UNCHANGED))
    source = """function process(ev) {
      if (ev.after.id === 1) ev.after.note = String("note" in ev.after) + ev.unchanged;
      return ev;
    }"""
    [made] = run(script(source), block)
    assert made.batch.column("unchanged").to_pylist() == [[note], None]
    assert after(made)[1]["note"] == "falsenote"


def test_values_beyond_their_type_are_their_text_and_stay_exact_unless_written(script: Make) -> None:
    block = make_block(2)
    price = [c.name for c in block.table.columns].index("price")
    odd = [[{"side": 2, "column": price, "text": "NaN"}]] * 2
    block = with_column(block, "odd", pa.array(odd, ODD))
    source = """function process(ev) {
      ev.after.note = ev.after.price;
      if (ev.after.id === 1) ev.after.price = "2.50";
      return ev;
    }"""
    [made] = run(script(source), block)
    assert [row["note"] for row in after(made)] == ["NaN", "NaN"]
    assert made.batch.column("odd").to_pylist() == [odd[0], None]
    assert after(made)[1]["price"] == decimal.Decimal("2.50")


def test_new_columns_get_their_type_from_the_value_or_the_declaration(script: Make) -> None:
    source = """function process(ev) {
      Object.assign(ev.after, {n: 1, f: 0.5, s: "x", b: true, o: {a: [1]}, nothing: null, whole: 3, at: new Date(5)});
      ev.after.big = 7n;
      return ev;
    }"""
    [made] = run(script(source, columns={"whole": "integer", "at": "timestamp"}), make_block(2))
    types = {c.name: (str(c.type.arrow), c.type.json) for c in made.table.columns[8:]}
    assert types == {
        "n": ("double", JsonForm.NUMBER), "f": ("double", JsonForm.NUMBER), "s": ("string", JsonForm.STRING),
        "b": ("bool", JsonForm.BOOL), "o": ("string", JsonForm.RAW), "whole": ("int64", JsonForm.NUMBER),
        "at": ("timestamp[us, tz=UTC]", JsonForm.STRING), "big": ("int64", JsonForm.NUMBER),
    }  # fmt: skip
    assert after(made)[1]["o"] == '{"a":[1]}'


RATIO = "function process(ev) { ev.after.ratio = ev.after.id / 2; return ev; }"


def test_a_number_that_is_whole_at_first_may_have_a_fraction_later_and_table_columns_keep_their_types() -> None:
    chain = Chain([("javascript", {"id": "js", "inline": RATIO})], "shop")
    whole, later = make_block(1), make_block(4)
    first = chain.begin({})
    list(first.blocks(iter([whole])))
    [made] = list(chain.begin(first.learned).blocks(iter([later])))
    chain.close()
    assert [row["ratio"] for row in after(made)] == [0.0, 0.5, 1.0, 1.5]
    assert [c.type for c in made.table.columns[:-1]] == [c.type for c in make_table().columns]


@pytest.mark.parametrize(
    ("given", "later", "what", "declared"),
    [
        ("1n", "0.5", "a number with a fraction", "number"),
        ("0.5", "9007199254740993n", "a BigInt with more digits than a double holds", "integer"),
        ("'x'", "5", "a number", "json"),
        ("true", "'secret'", "a string that does not fit", "json"),
        ("1n", "'0x10'", "a string that does not fit", "json"),  # Arrow alone would read 16
    ],
)
def test_a_value_of_another_type_than_a_column_learned_names_the_type_to_declare(
    script: Make, given: str, later: str, what: str, declared: str
) -> None:
    processor = script(f"function process(ev) {{ ev.after.x = ev.after.id ? {later} : {given}; return ev; }}")
    block = make_block(2)
    with pytest.raises(ProcessingError) as caught:
        run(processor, block)
    assert list(caught.value.reasons) == [int(block.offsets()[1])]
    assert f"was given {what}; `columns: {{x: {declared}}}` declares another type" in str(caught.value)
    assert f"Declare its type in the processor's settings: `columns: {{x: {declared}}}`" in caught.value.fix
    assert "secret" not in str(caught.value)
    with pytest.raises(ProcessingError, match=re.escape(f"`columns: {{x: {declared}}}`")):
        run(script(processor.config.inline or "", max_events=1), block)  # each event in a call of its own
    declaring = script(processor.config.inline or "", columns={"x": declared})
    if given != "0.5":  # an integer column takes no fraction: it is the BigInt's
        assert len(after(run(declaring, block)[0])) == 2


def test_a_column_deleted_from_every_event_is_gone_and_from_some_is_null(script: Make) -> None:
    [made] = run(script("function process(ev) { delete ev.after.note; return ev; }"), make_block(3))
    assert "note" not in [c.name for c in made.table.columns]
    [made] = run(
        script("function process(ev) { if (ev.after.id) delete ev.after.customer; return ev; }"), make_block(2)
    )
    assert [row["customer"] for row in after(made)] == ["customer 0 — Zürich", None]


def test_a_value_that_does_not_fit_is_an_error_of_its_event_and_is_not_quoted(script: Make) -> None:
    unfit = ["quantity = 'secret'", "quantity = 1.5", "quantity = 3e9", "paid = 1", "customer = 5"]
    for change in (*unfit, "price = 'secret'", "placed_at = 'secret'"):
        processor = script(f"function process(ev) {{ if (ev.after.id === 1) ev.after.{change}; return ev; }}")
        block = make_block(3)
        with pytest.raises(ProcessingError) as caught:
            run(processor, block)
        assert list(caught.value.reasons) == [int(block.offsets()[1])]
        assert "secret" not in str(caught.value)
        assert change.split(" = ")[0] in str(caught.value)
