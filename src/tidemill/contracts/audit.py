"""What a sink promises that can say whether its rows are the source's. `tidemill verify` asks it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidemill.model.block import Block
from tidemill.model.snapshot import Bound
from tidemill.model.table import Table


class RowFault(enum.StrEnum):
    MISSING = "missing"  # the source has the row, the sink has not
    DIFFERENT = "different"
    EXTRA = "extra"  # the sink has a row that the source has not


ValuePair = tuple[str | None, str | None]
"""A value as the source has it and as the sink has it, both as the sink prints them."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """`row` is its number in the block. `columns`: which differ; none where the sink's types cannot hold the row.
    `values` has a pair for each of them, if the audit was asked for values, and nothing otherwise."""

    row: int
    fault: RowFault
    columns: tuple[str, ...] = ()
    values: tuple[ValuePair, ...] = ()


class RowAudit(Protocol):
    """The rows of one table at a sink. Holds a connection; for one thread. Nobody else sees what it does."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are not compared: the sink does not have them, or computes them itself."""

    def compare(self, block: Block, *, note: bool) -> list[RowDifference]:
        """Rows of `after` that the sink lacks or has otherwise, as it would have written them itself: what its types
        round or pad is no difference. With `note` their keys count as seen, for `extra`."""

    def extra(self, most: int) -> list[Bound]:
        """Keys of rows at the sink that were not seen, at most so many; as `Chunk.points` has them, where the sink
        prints a value as Arrow does."""

    def has(self, key: Bound) -> bool:
        """Whether the sink has a row of this key now."""

    def remove(self, keys: Sequence[Bound], is_gone: Callable[[Bound], bool]) -> int:
        """Deletes the rows of these keys; answers how many. `is_gone` looks at the source once more. It is asked when
        the row is held, by a lock or by its version: so a row that the source inserts meanwhile, and that is delivered
        before or after, stays. `Refused` if the sink keeps events, which nobody can take back."""

    def close(self) -> None: ...


@runtime_checkable
class AuditedSink(Protocol):
    """A sink whose rows can be compared. One that is not of this kind cannot be verified."""

    def audit(self, table: Table, source: str, *, values: bool = False) -> RowAudit:
        """`Refused` if the sink has no such table, or the table has no key. `values`: differences come with them."""
