"""Conditions over events: every operator against the same question asked of the events that a sink would write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tidemill.errors import ProcessingError, TidemillError
from tidemill.formats.json import JsonFormat
from tidemill.model.block import ODD, Block, Op, Side
from tidemill.model.delivery import Delivery
from tidemill.model.derived import with_column
from tidemill.processors.filter import FilterConfig, FilterProcessor
from tidemill.processors.filter.condition import OPERATORS
from tidemill.sinks.files import FilesConfig, FilesSink
from tidemill.stream.lane.chain import Chain

OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)
#: What events of the tests hold: whole numbers, text, and NULL in both.
FIELDS = {"quantity": "number", "note": "text", "customer": "text", "op": "text"}


def kept(where: Mapping[str, Any], block: Block, **settings_: Any) -> list[int]:
    config = FilterConfig.model_validate({"id": "f", "where": where, **settings_})
    return [int(offset) for out in FilterProcessor(config).process(iter([block])) for offset in out.offsets()]


def block_of(rows: int = 60, *, identity: str = "full") -> Block:
    return make_block(rows, table=make_table(identity=identity), ops=[OPS[number % 4] for number in range(rows)])


def value_of(event: Mapping[str, Any], field: str) -> Any:
    if field == "op":
        return event["op"]
    return (event["after"] or event["before"])[field]


def judged(event: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """The same condition, of one event as the sink wrote it."""
    if "all" in where:
        return all(judged(event, each) for each in where["all"])
    if "any" in where:
        return any(judged(event, each) for each in where["any"])
    value = value_of(event, where["field"])
    (operator,) = where.keys() - {"field"}
    operand = where[operator]
    match operator:
        case "exists" | "not_exists":
            return (value is not None) is (operand is (operator == "exists"))
        case "changed":
            old, new = event["before"], event["after"]
            differs = True if old is None or new is None else old[where["field"]] != new[where["field"]]
            return differs is operand
        case "ne" | "not_in" if value is None:
            return True
        case _ if value is None:
            return False
    answers: dict[str, Callable[[], Any]] = {
        "eq": lambda: value == operand, "ne": lambda: value != operand, "gt": lambda: value > operand,
        "gte": lambda: value >= operand, "lt": lambda: value < operand, "lte": lambda: value <= operand,
        "in": lambda: value in operand, "not_in": lambda: value not in operand,
        "contains": lambda: operand in value, "regex": lambda: bool(re.search(operand, value)),
    }  # fmt: skip
    return bool(answers[operator]())


numbers = st.integers(-3, 14)
texts = st.sampled_from(["customer 1 — Zürich", "note 4", "note 40", "insert", "read", "", "Zürich"])
comparisons = st.one_of(
    st.builds(lambda o, v: {"field": "quantity", o: v},
              st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]), numbers),
    st.builds(lambda v: {"field": "quantity", "gt": v + 0.5}, numbers),
    st.builds(lambda f, o, v: {"field": f, o: v}, st.sampled_from(["note", "customer", "op"]),
              st.sampled_from(["eq", "ne", "gt", "lte", "contains"]), texts),
    st.builds(lambda o, v: {"field": "quantity", o: v}, st.sampled_from(["in", "not_in"]),
              st.lists(numbers, min_size=1, max_size=4)),
    st.builds(lambda o, v: {"field": "note", o: v}, st.sampled_from(["in", "not_in"]),
              st.lists(texts, min_size=1, max_size=3)),
    st.builds(lambda v: {"field": "note", "regex": v}, st.sampled_from(["^note [0-4]", "4$", "x|note", "no.e"])),
    st.builds(lambda f, o, v: {"field": f, o: v}, st.sampled_from(["note", "quantity"]),
              st.sampled_from(["exists", "not_exists", "changed"]), st.booleans()),
)  # fmt: skip
conditions = st.recursive(
    comparisons, lambda inner: st.builds(lambda k, c: {k: c}, st.sampled_from(["all", "any"]),
                                         st.lists(inner, min_size=1, max_size=3)), max_leaves=5,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(where=conditions)
def test_filtering_before_the_sink_equals_filtering_what_the_sink_wrote(where: dict[str, Any]) -> None:
    block = block_of()
    written = [orjson.loads(text) for text in JsonFormat().encode(block, "shop").to_pylist()]
    assert kept(where, block) == [event["offset"] for event in written if judged(event, where)]


#: For each operator, conditions over columns of several kinds, with values that the rows of the tests have, or nearly.
BY_OPERATOR: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    **{
        name: st.one_of(
            st.builds(lambda v, name=name: {"field": "quantity", name: v}, st.one_of(numbers, st.floats(-3, 14))),
            st.builds(lambda v, name=name: {"field": "weight", name: v}, st.sampled_from([0, 0.5, 1, 3.125])),
            st.builds(lambda f, v, name=name: {"field": f, name: v}, st.sampled_from(["note", "customer"]), texts),
        )
        for name in ("eq", "ne", "gt", "gte", "lt", "lte")
    },
    **{
        name: st.one_of(
            st.builds(lambda v, name=name: {"field": "quantity", name: v}, st.lists(numbers, min_size=1, max_size=4)),
            st.builds(lambda v, name=name: {"field": "note", name: v}, st.lists(texts, min_size=1, max_size=3)),
        )
        for name in ("in", "not_in")
    },
    "contains": st.builds(lambda f, v: {"field": f, "contains": v}, st.sampled_from(["note", "customer", "op"]), texts),
    "regex": st.builds(lambda v: {"field": "note", "regex": v}, st.sampled_from(["^note [0-4]", "4$", "x|note"])),
    **{
        name: st.builds(lambda f, v, name=name: {"field": f, name: v}, st.sampled_from(["note", "paid"]), st.booleans())
        for name in ("exists", "not_exists", "changed")
    },
}


def test_every_operator_is_tried() -> None:
    assert set(BY_OPERATOR) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_filter_and_sink_equal_sink_and_filter(operator: str) -> None:
    block = block_of()

    def written(blocks: list[Block], directory: Path) -> list[dict[str, Any]]:
        sink = FilesSink(FilesConfig(id="out", path=str(directory)))
        sink.write(Delivery("p", "shop", 0, block.rows, 0, 1, lambda: iter(blocks)))
        sink.close()
        files = sorted(directory.rglob("*.jsonl"))
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]

    with TemporaryDirectory() as place:
        everything = written([block], Path(place))

    @settings(max_examples=12, deadline=None)
    @given(where=BY_OPERATOR[operator])
    def check(where: dict[str, Any]) -> None:
        chain = Chain([("filter", {"id": "f", "where": where})], "shop")
        passed = list(chain.begin({}).blocks(iter([block])))
        with TemporaryDirectory() as place:
            assert written(passed, Path(place)) == [event for event in everything if judged(event, where)]

    check()


def test_a_condition_that_cannot_be_told_passes_unless_told_otherwise() -> None:
    block = block_of(4, identity="key")  # a delete brings nothing but its key
    where = {"field": "customer", "eq": "nobody"}
    assert kept(where, block) == [2]
    assert kept(where, block, unknown="drop") == []
    with pytest.raises(ProcessingError) as failed:
        kept(where, block, unknown="fail")
    assert list(failed.value.reasons) == [2]
    assert kept({"any": [where, {"field": "op", "eq": "insert"}]}, block, unknown="drop") == [0], "true or unknown"


def test_a_column_that_was_not_sent_again_is_known_from_the_old_row_or_not_at_all() -> None:
    block = make_block(2, table=make_table(identity="full"), ops=Op.UPDATE, first_id=1)
    number = [column.name for column in block.table.columns].index("note")
    block = with_column(block, "unchanged", pa.array([[number], None], pa.list_(pa.uint16())))
    assert kept({"field": "note", "eq": "note 1"}, block, unknown="drop") == [0], "the old row has it"
    assert kept({"field": "after.note", "eq": "note 1"}, block, unknown="drop") == []
    assert kept({"field": "note", "changed": False}, block, unknown="drop") == [0, 1]


def test_a_value_that_its_type_cannot_hold_exists_and_cannot_be_compared() -> None:
    block = make_block(2)
    number = [column.name for column in block.table.columns].index("price")
    odd = pa.array([[{"side": int(Side.AFTER), "column": number, "text": "NaN"}], None], ODD)
    block = with_column(block, "odd", odd)
    assert kept({"field": "price", "exists": True}, block) == [0, 1]
    assert kept({"field": "price", "lt": 1000}, block, unknown="drop") == [1]


def test_a_value_that_its_type_cannot_hold_has_changed_only_if_its_exact_text_has() -> None:
    """Rows: the same NaN, another text, from a number to a text, from a text to NULL."""
    block = make_block(4, ops=Op.UPDATE, table=make_table(identity="full"))
    number = [column.name for column in block.table.columns].index("price")
    for side, numbers in (("before", (2,)), ("after", ())):
        image = block.batch.column(side)
        mask = pa.array([row in numbers for row in range(4)])
        fields = [
            pc.if_else(mask, a, pa.scalar(None, a.type)) if n == number else a for n, a in enumerate(image.flatten())
        ]
        block = with_column(block, side, pa.StructArray.from_arrays(fields, fields=list(image.type)))
    strings = [("NaN", "NaN"), ("NaN", "Infinity"), (None, "NaN"), ("NaN", None)]
    odd = [
        [{"side": int(side), "column": number, "text": text} for side, text in zip((1, 2), pair, strict=True) if text]
        for pair in strings
    ]
    block = with_column(block, "odd", pa.array(odd, ODD))
    assert kept({"field": "price", "changed": True}, block, unknown="drop") == [1, 2, 3]
    assert kept({"field": "price", "changed": False}, block, unknown="drop") == [0]
    assert kept({"field": "price", "exists": True}, block, unknown="drop") == [0, 1, 2], "the old row does not count"
    assert kept({"field": "before.price", "exists": True}, block, unknown="drop") == [0, 1, 2, 3]
    assert kept({"field": "price", "ne": 5}, block, unknown="drop") == [3], "NULL differs from 5"


def test_a_number_that_is_none_has_not_changed_if_it_was_none_before() -> None:
    block = make_block(2, ops=Op.UPDATE, table=make_table(identity="full"))
    number = [column.name for column in block.table.columns].index("weight")
    for side, values in (("before", [math.nan, 1.0]), ("after", [math.nan, math.nan])):
        image = block.batch.column(side)
        fields = [pa.array(values) if n == number else a for n, a in enumerate(image.flatten())]
        block = with_column(block, side, pa.StructArray.from_arrays(fields, fields=list(image.type)))
    assert kept({"field": "weight", "changed": True}, block, unknown="drop") == [1]


def test_numbers_are_compared_without_rounding() -> None:
    block = make_block(20)
    assert kept({"field": "quantity", "eq": 2.5}, block) == []
    assert kept({"field": "quantity", "gte": 10.5}, block) == [11, 12]
    assert kept({"field": "quantity", "lt": 10**30}, block) == list(range(20))
    assert kept({"field": "price", "eq": 0.25}, block) == [1]
    assert kept({"field": "placed_at", "lt": "2026-01-01T00:00:02Z"}, block) == [0, 1]
    assert kept({"field": "paid", "eq": True}, block) == list(range(0, 20, 2))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"field": "a", "equals": 1}, 'unknown operator "equals"'),
        ({"field": "a", "gte_": 1}, 'Did you mean "gte"'),
        ({"field": "a"}, "exactly one operator, not none"),
        ({"field": "a", "eq": 1, "ne": 2}, "exactly one operator, not eq, ne"),
        ({"eq": 1}, "needs a field"),
        ({"all": []}, "at least 1"),
        ({"all": [{"field": "a", "eq": 1}], "field": "b"}, "one of the three"),
        ({"field": "a", "regex": "("}, "RE2"),
        ({"field": "before.a", "changed": True}, "name the column alone"),
    ],
)
def test_a_wrong_condition_is_refused_with_what_is_valid(where: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        FilterConfig.model_validate({"id": "f", "where": where})


@pytest.mark.parametrize(
    ("where", "words", "fix"),
    [
        ({"field": "custmer", "eq": "x"}, 'has no column "custmer"', 'Did you mean "customer"?'),
        ({"field": "after.wieght", "gt": 1}, 'has no column "wieght"', 'Did you mean "weight"?'),
        ({"field": "placed_at", "gt": "yesterday"}, "cannot be compared", "ISO 8601"),
        ({"field": "paid", "eq": "yes"}, "cannot be compared", ""),
        ({"field": "id", "eq": "0x10"}, "cannot be compared", "numbers plainly"),
    ],
)
def test_a_condition_that_does_not_fit_the_table_names_what_would(where: dict[str, Any], words: str, fix: str) -> None:
    with pytest.raises(TidemillError) as stopped:
        list(Chain([("filter", {"id": "f", "where": where})], "s").begin({}).blocks(iter([make_block(1)])))
    assert words in stopped.value.what
    assert fix in stopped.value.fix
