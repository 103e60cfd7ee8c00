"""Keeps some columns of events, by name or pattern, and removes all others. Columns of the key always stay."""

from __future__ import annotations

from pydantic import Field

from tidemill.model.table import Table
from tidemill.processors._shared.columns import ChosenColumnsConfig, FewerColumns, choose, without


class KeepConfig(ChosenColumnsConfig):
    columns: tuple[str, ...] = Field(
        min_length=1, description="Columns that stay: names, or patterns with * or %, as in `address_%`."
    )


class KeepProcessor(FewerColumns[KeepConfig]):
    Config = KeepConfig

    def derive(self, table: Table) -> Table:
        stay = choose(table, self.config.columns, self.config.missing) | set(table.key)
        return without(table, {column.name for column in table.columns} - stay, "keep")


component = KeepProcessor
