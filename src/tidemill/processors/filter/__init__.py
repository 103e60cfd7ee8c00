"""Lets events pass that fulfil a condition, and drops the others.

A condition that cannot be told, because the source did not send the column, is `unknown`: a delete that brings only its
key, an UPDATE whose large column did not change. Such events pass unless the settings say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pyarrow.compute as pc
from pydantic import Field

from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ProcessingError
from tidemill.model.block import Block, empty_block
from tidemill.model.table import Table
from tidemill.processors.filter.condition import Condition
from tidemill.processors.filter.evaluate import evaluate


class FilterConfig(ProcessorConfig):
    where: Condition = Field(description="Events for which this is true pass.")
    unknown: Literal["pass", "drop", "fail"] = Field(
        default="pass",
        description="What becomes of an event whose condition cannot be told, as the source did not send the column.",
    )


class FilterProcessor(BaseProcessor[FilterConfig]):
    Config = FilterConfig
    checked = False

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            found = evaluate(self.config.where, block)
            if found.null_count and self.config.unknown == "fail":
                unknown = found.is_null().to_numpy(zero_copy_only=False)
                reason = "the source did not send a column that the condition needs"
                raise ProcessingError(
                    dict.fromkeys(block.offsets()[unknown].tolist(), reason),
                    fix="REPLICA IDENTITY FULL (PostgreSQL) or binlog_row_image=FULL (MySQL) sends all columns.",
                )
            mask = pc.fill_null(found, self.config.unknown == "pass") if found.null_count else found
            if pc.all(mask).as_py() is not False:
                yield block
            elif pc.any(mask).as_py():
                yield Block(block.table, block.batch.filter(mask))

    def check_table(self, table: Table) -> None:
        evaluate(self.config.where, empty_block(table))


component = FilterProcessor
