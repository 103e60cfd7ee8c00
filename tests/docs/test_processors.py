"""The page of processors: every one is on it, and every chain that it shows runs over rows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tests.support.members import built_in
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.config.secrets import reveal
from tidemill.model.block import Block, Op
from tidemill.model.derived import with_column
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.stream.lane.chain import Chain

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "processors.md").read_text()
TEXT, JSON = DataType("text", pa.string(), JsonForm.STRING), DataType("jsonb", pa.string(), JsonForm.RAW)
BIGINT = DataType("bigint", pa.int64(), JsonForm.NUMBER)
ORDERS: dict[str, tuple[DataType, list[Any]]] = {
    "id": (BIGINT, [1, 2]), "customer_id": (BIGINT, [7, 8]), "email": (TEXT, ["ann@example.com", "bo@elsewhere.org"]),
    "status": (TEXT, ["paid", "new"]), "amount": (BIGINT, [150, 50]), "notes": (TEXT, ["first", None]),
    "payload": (JSON, ['{"ship": {"city": "Bern"}, "total": 7, "tags": ["a"]}', None]),
}  # fmt: skip
OUTBOX: dict[str, tuple[DataType, list[Any]]] = {
    "id": (BIGINT, [1, 2]), "aggregate_type": (TEXT, ["order", "user"]), "aggregate_id": (TEXT, ["7", "8"]),
    "payload": (JSON, ["{}", "[]"]), "trace": (TEXT, ["t", None]),
}  # fmt: skip


def block_of(name: str, columns: dict[str, tuple[DataType, list[Any]]]) -> Block:
    table: Table = replace(
        make_table(name), columns=tuple(Column(column, kind) for column, (kind, _) in columns.items())
    ).with_fingerprint()
    rows = pa.StructArray.from_arrays(
        [pa.array(values, kind.arrow) for kind, values in columns.values()], fields=list(table.arrow_struct())
    )
    return with_column(Block(table, make_block(2, ops=Op.INSERT).batch), "after", rows)


def shown(text: str, tmp_path: Path) -> list[dict[str, Any]]:
    """What the chain of a document makes of two rows."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    (pipeline,) = config.load(file, {})
    chain = Chain([(p.type, reveal(p.config)) for p in pipeline.spec.processors], pipeline.source_id)
    block = block_of("outbox", OUTBOX) if "public.outbox" in text else block_of("orders", ORDERS)
    first = chain.begin({})
    list(first.blocks(iter([block])))
    out = chain.begin(first.learned).blocks(iter([block]))
    return [row for each in out for row in each.batch.select(_there(each)).to_pylist()]


def _there(block: Block) -> list[str]:
    return [name for name in ("offset", "after", "route") if name in block.batch.schema.names]


FENCES = dict(re.findall(r"^(?:## (\w+)\n\n)?```yaml\n(.*?)^```", PAGE, re.M | re.S))


def test_every_processor_has_a_section_or_a_page() -> None:
    sections = set(re.findall(r"^## (\w+)$", PAGE, re.M)) | {p.stem for p in (ROOT / "docs/processors").glob("*.md")}
    assert set(built_in("processors")) <= sections


@pytest.mark.parametrize("name", FENCES)
def test_what_the_page_shows_runs(name: str, tmp_path: Path) -> None:
    assert shown(FENCES[name], tmp_path)


def test_what_the_page_says_of_its_examples_is_so(tmp_path: Path) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        return [row["after"] for row in shown(FENCES[name], tmp_path)]

    assert [row["id"] for row in rows("filter")] == [1]
    assert rows("mask")[0]["email"] == "a***@example.com"
    assert rows("mask")[0]["amount"] is None
    assert rows("rename")[0]["customer"] == 7
    assert set(rows("drop")[0]) == {"id", "customer_id", "email", "status", "amount"}
    assert set(rows("keep")[0]) == {"id", "status", "amount"}
    flat = {name: value for name, value in rows("flatten")[0].items() if name.startswith("payload")}
    assert flat == {"payload_ship_city": "Bern", "payload_total": 7.0, "payload_tags": '["a"]'}
    routes = [row["route"]["topic"] for row in shown(FENCES["route"], tmp_path)]
    assert routes == ["orders-paid", "orders-new"]
    assert [row["route"]["topic"] for row in shown(FENCES["outbox"], tmp_path)] == ["shop.order", "shop.user"]


def test_the_events_of_the_page_are_tried_as_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [events] = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
    [shown_] = re.findall(r"^```console\n\$ tidemill process try.*?\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "orders.yaml").write_text(FENCES[""])
    (tmp_path / "sample.jsonl").write_text(events)
    tidemill = Terminal(capsys)
    command = ("process", "try", tmp_path / "orders.yaml", "--events", tmp_path / "sample.jsonl", "--processor", "paid")
    lines = [line.rstrip() for line in tidemill(*command).out.splitlines()]
    assert lines[:-1] == shown_.splitlines()[:-1]
    assert lines[-1].split()[:5] == shown_.splitlines()[-1].split()[:5], "without the time, which differs"
