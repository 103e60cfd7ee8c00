"""The outbox pattern: rows of a table that an application inserts messages into become messages.

Topic, key, payload and headers come from columns of the row; the event that sinks get has the payload as its only other
column beside the key. Deletes, by which the application clears the table, and updates are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ConfigError, ProcessingError
from tidemill.model.block import Block, Op, Side
from tidemill.model.derived import derived_table, with_column
from tidemill.model.odd import OddValues
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.processors._shared.columns import near, project
from tidemill.processors._shared.routes import check_templates, render, route, unmatched_defaults


class OutboxConfig(ProcessorConfig):
    topic: str = Field(
        default="${after.aggregate_type}", description="Template of the topic: `outbox.${after.aggregate_type}`."
    )
    key: str | None = Field(default="aggregate_id", description="Column that is the message's key; null for none.")
    payload: str = Field(default="payload", description="Column that is the message.")
    headers: dict[str, str] = Field(default={}, description="Columns that become headers, by the header's name.")

    @field_validator("topic")
    @classmethod
    def _template(cls, text: str) -> str:
        try:
            Template(text)
        except ConfigError as error:
            raise ValueError(f"{error.what}. {error.fix}") from error
        return text


class OutboxProcessor(BaseProcessor[OutboxConfig]):
    Config = OutboxConfig
    checked = False
    whole_rows = True

    def __init__(self, config: OutboxConfig) -> None:
        super().__init__(config)
        self._topic = Template(config.topic)

    @classmethod
    def sets_message_key(cls, config: Mapping[str, Any]) -> bool:
        return OutboxConfig.model_validate(dict(config)).key is not None

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            table = self.derive(block.table)
            new = np.isin(block.batch.column("op").to_numpy(), [int(Op.INSERT), int(Op.READ)])
            if not new.any():
                continue
            rows = block if new.all() else block.take(np.flatnonzero(new))
            messages = project(rows, table, [column.name for column in table.columns])
            yield with_column(messages, "route", self._route(rows))

    def derive(self, table: Table) -> Table:
        config = self.config
        wanted = {config.payload, *config.headers.values(), *({config.key} if config.key is not None else ())}
        names = {column.name for column in table.columns}
        for name in sorted(wanted - names):
            raise near(name, table)
        stay = {config.payload, *table.key}
        return derived_table(table, [column for column in table.columns if column.name in stay])

    def check_table(self, table: Table) -> None:
        self.derive(table)
        check_templates([self._topic], table)

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return unmatched_defaults([self._topic], tables)

    def _route(self, block: Block) -> pa.Array:
        topics = render(self._topic, block, self.source_id)
        key = _text(block, self.config.key) if self.config.key is not None else None
        empty = pc.equal(topics, "").to_numpy(zero_copy_only=False)
        if empty.any():
            raise ProcessingError(dict.fromkeys(block.offsets()[empty].tolist(), "it has no topic"))
        return route(block, topics, key, {name: _text(block, of) for name, of in self.config.headers.items()})


def _text(block: Block, name: str) -> pa.Array:
    """A column of the new rows, with the exact texts of values that its type cannot hold."""
    place = [column.name for column in block.table.columns].index(name)
    values = (block.struct("after") or {})[name]
    try:
        strings = values.cast(pa.string())
    except pa.ArrowException as error:
        raise ConfigError(f"a column of type {values.type} cannot be a key or a header") from error
    exact = OddValues(block).of(Side.AFTER, place)
    return strings if exact is None else pc.coalesce(strings, exact)


component = OutboxProcessor
