"""Columns by name or pattern, for processors that take or change some of a table's columns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import pyarrow as pa
from pydantic import Field

from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ConfigError
from tidemill.model.block import Block
from tidemill.model.derived import SIDES, derived_table, image, reshape
from tidemill.model.table import Column, Table


class ColumnsConfig(ProcessorConfig):
    """Settings of processors that name columns."""

    missing: Literal["error", "ignore"] = Field(
        default="error",
        description="What a column that is named, but that the table does not have, is: a mistake, or nothing.",
    )


class ChosenColumnsConfig(ColumnsConfig):
    """Settings of processors that choose columns which stay or go; each says which of the two under its own words."""

    columns: tuple[str, ...]


ChosenColumnsT = TypeVar("ChosenColumnsT", bound=ChosenColumnsConfig)


class FewerColumns(BaseProcessor[ChosenColumnsT]):
    """What leaves columns out and changes nothing else: `derive` says which stay."""

    checked = False
    whole_rows = True

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            table = self.derive(block.table)
            yield project(block, table, [column.name for column in table.columns])

    def derive(self, table: Table) -> Table:
        raise NotImplementedError

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return find_unmatched(self.config.columns, tables)


def near(name: str, table: Table) -> ConfigError:
    """There is no such column; the nearest one that there is."""
    names = [column.name for column in table.columns]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    listed = f"It has: {', '.join(names)}. " if len(names) <= 25 else ""
    return ConfigError(
        f'{table.full_name} has no column "{name}"',
        fix=f"{hint}{listed}Name its tables under `tables` if the processor is not for this one.",
    )


def choose(table: Table, patterns: Sequence[str], missing: str) -> set[str]:
    """Names of the table's columns that one of the patterns matches. A pattern with * or % need not match any."""
    found: set[str] = set()
    for text in patterns:
        if is_pattern(text):
            expression = re.compile("".join(".*" if c in "*%" else re.escape(c) for c in text), re.DOTALL)
            found |= {column.name for column in table.columns if expression.fullmatch(column.name)}
        elif any(column.name == text for column in table.columns):
            found.add(text)
        elif missing == "error":
            raise near(text, table)
    return found


def find_unmatched(patterns: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Those that no column of any of the tables matches."""
    return [text for text in patterns if not any(choose(table, (text,), "ignore") for table in tables)]


def is_pattern(text: str) -> bool:
    return bool(set(text) & set("*%"))


def project(block: Block, table: Table, sources: Sequence[str]) -> Block:
    """The block with the columns of `table`, each being the block's own column of that place in `sources`: nothing is
    computed, columns are only dropped, renamed or put in another order."""
    renamed = dict(zip(sources, table.columns, strict=True))
    images = {side: _of(block, side, renamed) for side in SIDES if block.column(side) is not None}
    return reshape(block, table, images, sources)


def _of(block: Block, side: str, renamed: dict[str, Column]) -> pa.StructArray:
    struct: pa.StructArray = block.column(side)
    # Not `flatten`: children stay as they are, the struct's own nulls stay beside them.
    there = {field.name: number for number, field in enumerate(struct.type)}
    pairs = [(struct.field(there[old]), column) for old, column in renamed.items() if old in there]
    return image([array for array, _ in pairs], [column for _, column in pairs], struct)


def without(table: Table, gone: set[str], what: str) -> Table:
    """`ConfigError` if a column of the key is among them."""
    lost = [name for name in table.key if name in gone]
    if lost:
        raise ConfigError(
            f'{what} would take "{lost[0]}" out of {table.full_name}, which is a column of its key',
            fix="Sinks tell rows apart by the key: leave it, or mask it with the method hash.",
        )
    return derived_table(table, [column for column in table.columns if column.name not in gone])
