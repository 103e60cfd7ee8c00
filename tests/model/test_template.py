"""Routing templates: one string per block, or one per row by way of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill.errors import ConfigError, Refused
from tidemill.model.block import ODD, Op, Side
from tidemill.model.derived import with_column
from tidemill.model.template import Template


def rendered(text: str, *args: object, **kwargs: object) -> list[str]:
    return Template(text).render(make_block(*args, **kwargs), "orders-db").to_pylist()  # type: ignore[arg-type]


def test_text_without_references_is_itself() -> None:
    template = Template("orders")
    assert template.is_literal
    assert template.constant(make_table(), "s") == "orders"


def test_references_to_the_table_are_the_same_for_a_whole_block() -> None:
    template = Template("${source.id}/${source.database}.${source.schema}.${source.table}")
    assert template.is_constant
    assert not template.is_literal
    assert template.constant(make_table(), "orders-db") == "orders-db/shop.public.orders"
    assert Template("${database}.${schema}.${table}").constant(make_table(), "s") == "shop.public.orders"


def test_a_constant_template_renders_per_row_too() -> None:
    assert rendered("t-${source.table}", 3) == ["t-orders"] * 3


def test_values_of_any_plain_type_become_text() -> None:
    assert rendered("${after.id}|${after.paid}|${after.price}|${op}", 2) == [
        "0|true|0.00|insert",
        "1|false|0.25|insert",
    ]


def test_a_deleted_row_is_routed_by_its_old_values() -> None:
    block = {"ops": [Op.INSERT, Op.DELETE], "table": make_table(identity="full")}
    assert rendered("${after.quantity}", 2, **block) == ["0", "1"]
    assert rendered("${key.id}", 2, ops=[Op.INSERT, Op.DELETE]) == ["0", "1"]


def test_a_missing_value_takes_the_default() -> None:
    assert rendered("${after.note:-none}", 3) == ["none", "note 1", "note 2"]
    assert rendered("${after.no_such_column:-x}", 2) == ["x", "x"]


def test_a_value_that_became_null_is_null_and_not_the_old_one() -> None:
    block = make_block(3, ops=Op.UPDATE, table=make_table(identity="full"), first_id=1)
    before, after = block.batch.column("before"), block.batch.column("after")
    quantity = after.type.get_field_index("quantity")
    fields = [pa.nulls(3, a.type) if n == quantity else a for n, a in enumerate(after.flatten())]
    block = with_column(block, "after", pa.StructArray.from_arrays(fields, fields=list(after.type)))
    old = before.field(quantity).cast(pa.string()).to_pylist()
    assert None not in old
    assert Template("${after.quantity:-none}").render(block, "s").to_pylist() == ["none"] * 3
    assert Template("${before.quantity}").render(block, "s").to_pylist() == old
    unsent = with_column(block, "unchanged", pa.array([[quantity], None, [0]], pa.list_(pa.int32())))
    assert Template("${after.quantity:-none}").render(unsent, "s").to_pylist() == [old[0], "none", "none"]


def test_a_value_that_its_type_cannot_hold_is_its_exact_text() -> None:
    block = make_block(3)
    entry = {"side": int(Side.AFTER), "column": 6, "text": "X'00'"}
    odd = pa.array([[entry], None, None], ODD)
    assert Template("${after.note:-none}").render(with_column(block, "odd", odd), "s").to_pylist() == [
        "X'00'", "note 1", "note 2",
    ]  # fmt: skip


def test_a_missing_value_without_a_default_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match="1 of 3 rows") as caught:
        rendered("${after.note}", 3)
    assert "${after.note:-other}" in caught.value.fix


@pytest.mark.parametrize("text", ["${source.tabel}", "${after.}", "${nothing}", "${}"])
def test_an_unknown_reference_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError, match="names"):
        Template(text)


def test_a_brace_left_open_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="not closed"):
        Template("orders-${source.table")


def test_parts_of_the_commit_time_are_in_utc() -> None:
    block = make_block(2)
    text = "dt=${commit.date}/${commit.year}-${commit.month}-${commit.day}T${commit.hour}"
    assert Template(text).render(block, "s").to_pylist() == ["dt=2026-01-01/2026-01-01T00"] * 2
    assert not Template(text).is_constant


def test_values_are_escaped_and_the_text_around_them_is_not() -> None:
    block = make_block(2)
    escape = {"orders": "O", "0": "zero", "1": "one"}.__getitem__
    rendered = Template("a/${source.table}/${after.id}").render(block, "s", escape)
    assert rendered.to_pylist() == ["a/O/zero", "a/O/one"]
