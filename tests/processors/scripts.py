"""A script of the processor `javascript`, made for a test and ended with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block
from tidemill.model.block import Block
from tidemill.model.derived import with_column
from tidemill.model.table import Column
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor

Make = Callable[..., JavascriptProcessor]


@pytest.fixture
def script() -> Iterator[Make]:
    made: list[JavascriptProcessor] = []

    def make(inline: str, **settings: Any) -> JavascriptProcessor:
        processor = JavascriptProcessor(JavascriptConfig.model_validate({"id": "js", "inline": inline, **settings}))
        processor.source_id = "shop"
        made.append(processor)
        return processor

    yield make
    for processor in made:
        processor.close()


def run(processor: JavascriptProcessor, *blocks: Block) -> list[Block]:
    return [made for block in blocks for made in processor.process(iter([block]))]


def after(block: Block) -> list[Any]:
    rows: list[Any] = block.batch.column("after").to_pylist()
    return rows


def big(values: list[Any], kind: pa.DataType, native: str, form: JsonForm = JsonForm.NUMBER) -> Block:
    """A block of `id` and one more column `v`."""
    base = make_block(len(values))
    columns = (base.table.columns[0], Column("v", DataType(native, kind, form)))
    table = replace(base.table, columns=columns, fingerprint="").with_fingerprint()
    struct = pa.StructArray.from_arrays(
        [base.batch.column("after").field(0), pa.array(values, kind)], fields=list(table.arrow_struct())
    )
    return Block(table, with_column(base, "after", struct).batch)
