"""route, outbox and compact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.support.blocks import COLUMNS, make_block, make_table
from tidemill.errors import ProcessingError
from tidemill.model.block import ODD, UNCHANGED, Block, Op, Side
from tidemill.model.derived import with_column
from tidemill.model.table import Column
from tidemill.model.template import Template
from tidemill.processors.route import RouteConfig
from tidemill.sinks._shared.routing import destinations, routed_headers, routed_keys
from tidemill.stream.lane.chain import Chain


def run(specs: list[tuple[str, dict[str, Any]]], *blocks: Block) -> list[Block]:
    whole = [(kind, {"id": f"p{number}", **config}) for number, (kind, config) in enumerate(specs)]
    return list(Chain(whole, "shop").begin({}).blocks(iter(blocks)))


def test_a_route_names_topic_key_and_headers_for_sinks() -> None:
    first = ("route", {"topic": "orders-${after.paid}", "headers": {"from": "${source.id}", "kind": "a"}})
    second = ("route", {"key": "k-${after.id}", "headers": {"kind": "${op}"}})
    (out,) = run([first, second], make_block(2))
    assert destinations(Template("fallback"), out, "shop").to_pylist() == ["orders-true", "orders-false"]
    keys = routed_keys(out, pa.array([b"0", b"1"], pa.large_binary()))
    assert keys.to_pylist() == [b"k-0", b"k-1"]
    assert {name: values.to_pylist() for name, values in routed_headers(out).items()} == {
        "from": ["shop", "shop"], "kind": ["insert", "insert"],
    }  # fmt: skip


def test_rows_that_no_processor_routes_go_where_the_sink_says() -> None:
    (out,) = run([("route", {"topic": "${after.note}", "ops": ["insert"]})],
                 make_block(3, ops=[Op.UPDATE, Op.INSERT, Op.UPDATE]))  # fmt: skip
    assert destinations(Template("t-${after.id}"), out, "shop").to_pylist() == ["t-0", "note 1", "t-2"]
    plain = make_block(2)
    assert destinations(Template("t"), plain, "shop").to_pylist() == ["t", "t"]
    assert routed_headers(plain) == {}


def test_a_row_without_a_value_for_its_route_is_an_error_of_that_event() -> None:
    with pytest.raises(ProcessingError, match="event 0: no value for a part of"):
        run([("route", {"topic": "${after.note}"})], make_block(2))
    with pytest.raises(ValidationError, match="Did you mean"):
        RouteConfig.model_validate({"id": "r", "topic": "${source.tabel}"})
    with pytest.raises(ValidationError, match="it says nothing"):
        RouteConfig.model_validate({"id": "r"})


def test_rows_of_an_outbox_become_messages_and_deletes_are_dropped() -> None:
    text = COLUMNS[1].type
    table = replace(
        make_table("outbox"),
        columns=(COLUMNS[0], *(Column(name, text) for name in ("aggregate_type", "aggregate_id", "payload", "trace"))),
    ).with_fingerprint()
    rows = pa.StructArray.from_arrays(
        [pa.array([1, 2]), pa.array(["order", "user"]), pa.array(["7", "8"]), pa.array(["{}", "[]"]),
         pa.array(["t1", None])], fields=list(table.arrow_struct()),
    )  # fmt: skip
    plain = make_block(2, ops=Op.INSERT)
    block = with_column(Block(table, plain.batch), "after", rows)
    gone = make_block(1, table=table, ops=Op.DELETE, offsets=[2])
    config = {"topic": "out.${after.aggregate_type}", "headers": {"trace-id": "trace"}, "tables": ["public.outbox"]}
    (out,) = run([("outbox", config)], block, gone)
    assert [column.name for column in out.table.columns] == ["id", "payload"]
    route = out.batch.column("route").to_pylist()
    assert [(each["topic"], each["key"], each["headers"]) for each in route] == [
        ("out.order", "7", [("trace-id", "t1")]), ("out.user", "8", [("trace-id", None)]),
    ]  # fmt: skip
    exact = [{"side": int(Side.AFTER), "column": 2, "text": "5"}, {"side": int(Side.AFTER), "column": 4, "text": "6"}]
    fields = [pa.nulls(2, a.type) if n in (2, 4) else a for n, a in enumerate(rows.flatten())]
    block = with_column(block, "after", pa.StructArray.from_arrays(fields, fields=list(rows.type)))
    (out,) = run([("outbox", config)], with_column(block, "odd", pa.array([exact, None], ODD)))
    route = out.batch.column("route").to_pylist()  # values that their column's type cannot hold, of a SQLite file
    assert [(each["key"], each["headers"]) for each in route] == [
        ("5", [("trace-id", "6")]),
        (None, [("trace-id", None)]),
    ]


def changes(*rows: tuple[Op, int], offsets: list[int] | None = None, unchanged: Any = None) -> Block:
    """Events of rows with these ids."""
    parts = [make_block(1, ops=op, first_id=key, table=make_table(identity="full")) for op, key in rows]
    from tidemill.stream.lane.rows import stack

    block = stack(parts)
    numbers = pa.array(offsets or list(range(len(rows))), pa.uint64())
    block = with_column(block, "offset", numbers)
    return block if unchanged is None else with_column(block, "unchanged", pa.array(unchanged, UNCHANGED))


def kept(*blocks: Block) -> list[int]:
    return [int(offset) for out in run([("compact", {})], *blocks) for offset in out.offsets()]


def test_compact_keeps_the_last_change_of_each_key_over_all_blocks_of_a_batch() -> None:
    one = changes((Op.INSERT, 1), (Op.INSERT, 2), (Op.UPDATE, 1))
    two = changes((Op.UPDATE, 2), (Op.DELETE, 1), (Op.INSERT, 3), offsets=[3, 4, 5])
    assert kept(one, two) == [3, 4, 5]


def test_compact_keeps_what_a_later_change_did_not_bring() -> None:
    rows = [(Op.INSERT, 1), (Op.UPDATE, 1), (Op.UPDATE, 1), (Op.UPDATE, 1)]
    assert kept(changes(*rows, unchanged=[None, None, None, [6]])) == [2, 3]
    assert kept(changes(*rows[:3], (Op.DELETE, 1), unchanged=[None, [6], [6], None])) == [3]


def test_compact_does_not_move_a_row_over_a_truncate() -> None:
    truncate = Block(make_table(identity="full"), make_block(1, ops=Op.TRUNCATE, offsets=[1]).batch)
    assert kept(changes((Op.INSERT, 1)), truncate, changes((Op.INSERT, 1), offsets=[2])) == [0, 1, 2]


def test_compact_leaves_tables_without_a_key_alone() -> None:
    table = make_table(key=())
    assert kept(make_block(3, table=table)) == [0, 1, 2]
