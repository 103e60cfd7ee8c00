"""What sources of a database file have in common: `sqlite` and `turso`."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field, field_validator

from tidemill.contracts import Check, Component, Outcome, Schemas, SnapshotConfig, SourceConfig
from tidemill.errors import ConnectionLost
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.sources._shared.errors import as_value_error
from tidemill.sources._shared.patterns import Pattern
from tidemill.sources._shared.sqlite_catalog import file_number, path_of_file
from tidemill.sources._shared.sqlite_names import name_filters, patterns_of

# Where so many recorded changes wait they are removed soon: a file must not grow faster than it is emptied.
_MANY, _SOON_SECONDS = 5_000, 1.0


class DatabaseFileConfig(SourceConfig):
    path: Path = Field(description="The database file. Its folder must be writable too: the journal is kept there.")
    tables: tuple[str, ...] = Field(
        default=(), description='Tables to capture: orders, ord%, *, "quoted name"; none means all.'
    )
    snapshot: SnapshotConfig | None = Field(
        default=None, description="Copies the rows that are in the tables already. Left out: changes only."
    )
    trim_seconds: float = Field(
        default=10,
        ge=0,
        description="Seconds between removals of recorded changes that were delivered; one second where thousands"
        " wait. A removal writes to the file, as another program would.",
    )

    @field_validator("path", mode="before")
    @classmethod
    def _path_is_no_address(cls, value: object) -> object:
        return path_of_file(value)

    @field_validator("tables")
    @classmethod
    def _tables_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        as_value_error(lambda: patterns_of(value))
        return value

    @field_validator("snapshot")
    @classmethod
    def _filters_name_tables(cls, value: SnapshotConfig | None) -> SnapshotConfig | None:
        return as_value_error(lambda: name_filters(value))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return patterns_of(self.tables)

    @property
    def database_name(self) -> str:
        return self.path.stem

    @property
    def where(self) -> str:
        return f'source "{self.id}"'


FileConfigT = TypeVar("FileConfigT", bound=DatabaseFileConfig)


class DatabaseFileSource(Component[FileConfigT]):
    """One file. For one thread."""

    def __init__(self, config: FileConfigT) -> None:
        super().__init__(config)
        self.began = Position("")
        self._opened_file: tuple[int, int] | None = None
        self._trimmed = 0
        self._trimmed_at = -math.inf

    @abstractmethod
    def _stream_position(self) -> Position | None:
        """The end of what was handed out; None before `open`."""

    @abstractmethod
    def _number(self, position: Position) -> int:
        """Of a position's change."""

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        """Again for the same position, until all that is before it has been removed. Beyond what was delivered goes
        only a stream that has brought changes of other tables since then."""
        if (rested := time.monotonic() - self._trimmed_at) < min(_SOON_SECONDS, self.config.trim_seconds):
            return None
        if caught_up:
            delivered = self._stream_position() or delivered
        if not delivered or (waiting := self._number(delivered) - self._trimmed) <= 0:
            return None
        return delivered if waiting > _MANY or rested >= self.config.trim_seconds else None

    def _is_opened_file(self) -> bool:
        return file_number(self.config.path) == self._opened_file

    def _must_be_opened_file(self) -> None:
        """A file may be put in its place, or be removed, at any time."""
        if not self._is_opened_file():
            raise ConnectionLost(
                f"{self.config.path} is gone, or is another file now", where=self.config.where,
                fix="It is opened again by itself, and is gone on with if it has all that follows our position.",
            )  # fmt: skip

    def lag_bytes(self) -> int | None:
        return None

    def hasten(self, high: Position) -> None:
        """Nothing to do: a recorded change is read at once, also of an idle file."""

    def register(self, tables: Sequence[Table], schemas: Schemas, position: Position) -> list[Table]:
        with schemas.together():
            return [schemas.register(table, position) for table in tables]


def check_waiting(waiting: int) -> Check:
    """Of a position that can be gone on from."""
    return Check("position", Outcome.PASS, f"{waiting} changes wait after it" if waiting else "nothing waits after it")
