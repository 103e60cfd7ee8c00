"""What every processor promises, asked of everything registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.contracts import BaseProcessor, Outcome, ProcessorConfig
from tidemill.model.block import META, Block, Op
from tidemill.model.derived import image, with_column
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.stream.lane.chain import Chain

#: A configuration of each, that any table of these tests takes.
EXAMPLES: dict[str, dict[str, Any]] = {
    "compact": {},
    "drop": {"columns": ["note"]},
    "filter": {"where": {"field": "id", "gte": 0}},
    "flatten": {"columns": ["document"]},
    "javascript": {"inline": "function processBatch(events) { return events; }"},
    "keep": {"columns": ["customer", "document"]},
    "mask": {"rules": [{"columns": ["customer"], "method": "hash"}], "salt": "a long salt"},
    "outbox": {"topic": "orders", "key": "customer", "payload": "document"},
    "python": {"function": "tests.processors.test_conformance:same", "style": "arrow"},
    "rename": {"columns": {"customer": "buyer"}},
    "route": {"topic": "orders-${op}"},
    "sql": {"query": "SELECT * FROM events"},
}
PROCESSORS = registry.names("processors")
OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def documented(rows: int, *, ops: Op | Sequence[Op] = Op.INSERT, first: int = 0) -> Block:
    """The usual table, with a JSON column."""
    kind = DataType("jsonb", pa.string(), JsonForm.RAW)
    table = make_table()
    block = make_block(rows, table=table, ops=ops, offsets=range(first, first + rows), first_id=first)
    table = replace(table, columns=(*table.columns, Column("document", kind))).with_fingerprint()
    after = block.column("after")
    texts = pa.array([f'{{"number":{number},"deep":{{"list":[1,2]}}}}' for number in range(first, first + rows)])
    children = [*(block.struct("after") or {}).values(), texts]
    whole = Block(table, block.batch)
    return whole if after is None else with_column(whole, "after", image(children, table.columns, after))


def chain(name: str, **settings: Any) -> Chain:
    return Chain([(name, {"id": "p", **EXAMPLES[name], **settings})], "shop")


def run(made: Chain, *blocks: Block) -> list[Block]:
    first = made.begin({})
    list(first.blocks(iter(blocks)))
    return list(made.begin(first.learned).blocks(iter(blocks)))


def test_every_registered_processor_stands_in_this_suite() -> None:
    assert set(PROCESSORS) <= EXAMPLES.keys()


@pytest.mark.parametrize("name", PROCESSORS)
def test_it_extends_the_base_and_every_field_is_described(name: str) -> None:
    kind = registry.load("processors", name)
    assert issubclass(kind, BaseProcessor)
    assert issubclass(kind.Config, ProcessorConfig)
    undescribed = [field for field, info in kind.Config.model_fields.items() if not info.description]
    assert not undescribed, f"fields without a description: {undescribed}"
    assert kind.Config.model_validate({"id": "p", **EXAMPLES[name]}).on_error == "halt"


@pytest.mark.parametrize("name", PROCESSORS)
def test_its_checks_raise_nothing_and_it_may_be_closed_twice(name: str) -> None:
    kind = registry.load("processors", name)
    made = kind(kind.Config.model_validate({"id": "p", **EXAMPLES[name]}))
    assert all(check.outcome in set(Outcome) for check in made.doctor())
    made.close()
    made.close()


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_same_events_give_the_same_bytes_whatever_came_before(name: str) -> None:
    block = documented(40, ops=[OPS[number % 4] for number in range(40)])
    made = chain(name)
    once = run(made, block)
    run(made, documented(7, first=100))
    again, fresh = run(made, block), run(chain(name), block)
    for others in (again, fresh):
        assert [one.table for one in once] == [other.table for other in others]
        assert all(one.batch.equals(other.batch) for one, other in zip(once, others, strict=True))
    made.close()


@pytest.mark.parametrize("name", PROCESSORS)
def test_events_keep_their_identity_and_their_order(name: str) -> None:
    block = documented(40, ops=[OPS[number % 4] for number in range(40)])
    out = run(chain(name), block)
    facts = {row["offset"]: row for row in block.batch.select(META.names).drop_columns(["op"]).to_pylist()}
    found = [row for each in out for row in each.batch.select(META.names).drop_columns(["op"]).to_pylist()]
    assert found
    assert all(facts[row["offset"]] == row for row in found)
    offsets = [row["offset"] for row in found]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("name", PROCESSORS)
def test_its_blocks_fit_the_table_that_they_name(name: str) -> None:
    for block in run(chain(name), documented(40, ops=[OPS[number % 4] for number in range(40)])):
        for side in ("before", "after"):
            struct = block.column(side)
            if struct is not None:
                assert struct.type == block.table.arrow_struct()
        assert set(block.table.key) <= {column.name for column in block.table.columns}
        assert len(block.table.fingerprint) == 64


@pytest.mark.parametrize("name", PROCESSORS)
def test_truncate_passes_by_and_comes_with_the_structure_of_the_rows(name: str) -> None:
    kept = registry.load("processors", name)(
        registry.load("processors", name).Config.model_validate({"id": "p", **EXAMPLES[name]})
    )
    rows = documented(3)
    truncate = Block(rows.table, make_block(1, ops=Op.TRUNCATE, offsets=[3]).batch)
    out = run(chain(name), rows, truncate)
    assert out[-1].batch.column("op").to_pylist() == [int(Op.TRUNCATE)]
    assert out[-1].table.columns == out[0].table.columns
    kept.close()


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_table_that_it_is_not_for_is_left_as_it_is(name: str) -> None:
    block = documented(3)
    (out,) = run(chain(name, tables=["other.*"]), block)
    assert out is block


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_unchanged_column_stays_unchanged(name: str) -> None:
    """TOAST: the source did not send it again, so nobody may write NULL in its place."""
    block = documented(3, ops=Op.UPDATE)
    number = [column.name for column in block.table.columns].index("weight")
    block = with_column(block, "unchanged", pa.array([None, [number], None], pa.list_(pa.uint16())))
    out = run(chain(name), block)
    table: Table = out[0].table if out else block.table
    if not out or "weight" not in {column.name for column in table.columns}:
        return
    now = [column.name for column in table.columns].index("weight")
    rows = {
        int(offset): numbers or []
        for each in out
        for offset, numbers in zip(each.offsets(), each.batch.column("unchanged").to_pylist(), strict=True)
    }
    assert now in rows[1]
    assert not any(now in numbers for offset, numbers in rows.items() if offset != 1)
