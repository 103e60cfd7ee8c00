"""Renames columns of events. The key follows its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import Field, field_validator

from tidemill.contracts import BaseProcessor
from tidemill.errors import ConfigError
from tidemill.model.block import Block
from tidemill.model.derived import derived_table
from tidemill.model.table import Table
from tidemill.processors._shared.columns import ColumnsConfig, find_unmatched, near, project


class RenameConfig(ColumnsConfig):
    columns: dict[str, str] = Field(min_length=1, description="New names by old ones: {cust_nm: customer_name}.")

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: dict[str, str]) -> dict[str, str]:
        twice = {new for new in columns.values() if list(columns.values()).count(new) > 1}
        if twice:
            raise ValueError(f'two columns would be called "{min(twice)}"')
        if not all(columns.values()):
            raise ValueError("a column needs a name")
        return columns


class RenameProcessor(BaseProcessor[RenameConfig]):
    Config = RenameConfig
    checked = False
    whole_rows = True

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            yield project(block, self.derive(block.table), [column.name for column in block.table.columns])

    def derive(self, table: Table) -> Table:
        names = [column.name for column in table.columns]
        if self.config.missing == "error":
            for old in self.config.columns:
                if old not in names:
                    raise near(old, table)
        new = [self.config.columns.get(name, name) for name in names]
        twice = next((name for name in new if new.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f'rename would give {table.full_name} two columns called "{twice}"',
                fix="Choose another name, or drop the other column before.",
            )
        columns = [replace(c, name=name) for c, name in zip(table.columns, new, strict=True)]
        return derived_table(table, columns, self.config.columns)

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return find_unmatched(tuple(self.config.columns), tables)


component = RenameProcessor
