"""What a processor promises to the stream, and the settings every processor has. docs/processors.md has the semantics.

A member transforms blocks and nothing else. The host (stream/lane/chain.py) does what all of them need: it picks the
rows by `tables` and `ops`, lets the others pass by in their place, applies `on_error`, checks what comes back, counts,
and keeps the structure of derived tables stable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from tidemill.contracts.component import Component
from tidemill.model.block import Block
from tidemill.model.config import Config
from tidemill.model.table import Table

OpName = Literal["insert", "update", "delete", "read"]


class ProcessorConfig(Config):
    """Fields every processor has; each processor's model extends it."""

    id: str = Field(
        min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="The processor's name in errors, metrics and dead letters; unique in a pipeline.",
    )  # fmt: skip
    tables: tuple[str, ...] = Field(
        default=(),
        description="Tables whose events it sees: orders (in any schema), schema.table, schema.*, schema.prefix%. All"
        " of them if not given.",
    )
    ops: tuple[OpName, ...] = Field(
        default=(), description="Operations that it sees; all four if not given. Other events pass by."
    )
    on_error: Literal["halt", "dead_letter", "skip"] = Field(
        default="halt",
        description="What an event that it fails on does: stop the pipeline, become a dead letter, or be dropped.",
    )
    changes_keys: bool = Field(
        default=False,
        description="Whether it may change key columns. All events of a table then go through one lane, in order.",
    )

    @field_validator("tables")
    @classmethod
    def _patterns(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        for text in tables:
            if not re.fullmatch(r"(?:[^.\s]+\.)?[^\s]+", text):
                raise ValueError(
                    f'"{text}" is not a table name or pattern. Write orders, schema.table, schema.* or schema.a%'
                )
        return tables


ProcessorConfigT = TypeVar("ProcessorConfigT", bound=ProcessorConfig)


class BaseProcessor(Component[ProcessorConfigT]):
    """What every processor extends. Lives in a Spark worker and is kept between batches; used by one thread at a time.

    Class attributes say what the host need not ask an object for:

    `holds`      it needs all blocks of a batch before it can yield the first (`compact`). It then yields one for each
                 that it was given, in their order, empty ones too. Any other is called per block.
    `checked`    the host compares what comes back with what went in: identities, keys, types. A member of this package
                 that only removes rows or columns says False and saves the time.
    `whole_rows` it changes columns of every row, so `ops` would leave a table with two structures: `ops` is refused.
    """

    holds: ClassVar[bool] = False
    checked: ClassVar[bool] = True
    whole_rows: ClassVar[bool] = False
    source_id: str = ""
    """The source's id, set by the host before the first call: the first part of every event_id."""
    learned: Callable[[Table], Table | None] = staticmethod(lambda table: None)
    """Set by the host: the structure that rows of a table had so far, of a processor whose `derive` says None."""
    show_messages: bool = False
    """Set by `tidemill process try`, whose user may see values: reasons then have the messages of all errors of the
    user's code, which may quote them."""

    @classmethod
    def sets_message_key(cls, config: Mapping[str, Any]) -> bool:
        """Whether, with these settings, it gives messages a key that sinks order by in the place of the row's own. All
        events of a table then go through one lane, as with `changes_keys`."""
        return False

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Blocks of one lane's share of one batch, in order. The host calls it with one block after the other, or once
        with all of them if it `holds`.

        Each block has rows of one table at one version, of the operations in `ops`, never DDL or TRUNCATE. What is
        yielded for a block keeps its rows' order and identity: meta columns (`offset`, `position`, `ordinal`, `tx_id`,
        `commit_time`) as they came. `op` may become insert, update or delete where the images fit it: `after` for the
        first two, the old row or its key and no `after` for a delete. Rows may be left out. A row may become several:
        all carry the meta columns of the one they were made of, and the optional column `sub` (uint16,
        `model.derived.with_sub`) counts them from 0, rising. `unchanged` and `odd` refer to columns by number: who
        changes the columns rebuilds them (`model.derived.reshape`). A `route` column (`model.block.ROUTE`) says where
        sinks with topics send the row.

        The same blocks give the same bytes (invariant 5), whatever came before. An event that cannot be processed is
        named by `ProcessingError({offset: reason})`; the host then gives the block again without it, in a new call, and
        forgets what the first one yielded. Reasons quote no values. Any other error stops the pipeline.
        """
        raise NotImplementedError

    def derive(self, table: Table) -> Table | None:
        """The structure that rows of `table` come back with, where that is known beforehand; the table itself where
        nothing changes. None where only the rows tell: then the host learns the columns from what is yielded, keeps
        them for ever, and refuses events that do not fit them. Its `fingerprint` is the host's business."""
        return table

    def check_table(self, table: Table) -> None:
        """`ConfigError` if its settings do not fit the table: a column that they name is not there. For `tidemill
        doctor`, before any row has come; a member that names columns in another way than by `derive` extends it."""
        self.derive(table)

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        """Names and patterns of columns in its settings that none of these tables has, though `check_table` allows that
        for each: a mask whose pattern matches nothing hides nothing. For `tidemill doctor`."""
        return ()

    def limit_usage(self) -> Mapping[str, tuple[float, float]]:
        """By the limit's name: the most that one call has used of it, and how much it may use. For `tidemill process
        try`."""
        return {}

    def check_code(self) -> None:
        """`ConfigError` with the line if code of the user's, in the settings or in a file, does not compile. Runs none
        of it outside of a sandbox; for `tidemill validate`."""
