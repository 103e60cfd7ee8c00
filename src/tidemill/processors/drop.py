"""Removes columns from events, by name or pattern. Columns of the key cannot be removed."""

from __future__ import annotations

from pydantic import Field

from tidemill.model.table import Table
from tidemill.processors._shared.columns import ChosenColumnsConfig, FewerColumns, choose, without


class DropConfig(ChosenColumnsConfig):
    columns: tuple[str, ...] = Field(
        min_length=1, description="Columns to remove: names, or patterns with * or %, as in `*_internal`."
    )


class DropProcessor(FewerColumns[DropConfig]):
    Config = DropConfig

    def derive(self, table: Table) -> Table:
        return without(table, choose(table, self.config.columns, self.config.missing), "drop")


component = DropProcessor
