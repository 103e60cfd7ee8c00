"""Where a schema registry keeps its rows: a file of one pipeline's, or tables of the state store that many share.

`schema.registry.SchemaRegistry` is written once over this; `state/registry_tables.py` and the registry itself have the
two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RegistryTables:
    """Names of the three tables. With a `pipeline` each row names its own; without one all rows are of one pipeline."""

    versions: str = "versions"
    structures: str = "structures"
    memory: str = "memory"
    pipeline: str | None = None

    @property
    def mine(self) -> str:
        """A condition; its values are `owner`."""
        return "1 = 1" if self.pipeline is None else "pipeline = ?"

    @property
    def owner(self) -> tuple[str, ...]:
        return () if self.pipeline is None else (self.pipeline,)

    def insert(self, table: str, *columns: str) -> str:
        """A statement whose values are `owner` and one of each column."""
        names = (*(() if self.pipeline is None else ("pipeline",)), *columns)
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"


class RegistryStatements(Protocol):
    """Runs one statement, with `?` for each value, and returns its rows."""

    def __call__(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]: ...


class RegistryDatabase(Protocol):
    """Both contexts commit when they end well, and undo everything when they do not. Safe between threads."""

    where: str  # for messages
    tables: RegistryTables

    def writing(self) -> AbstractContextManager[RegistryStatements]:
        """A transaction; others that write to this registry, in any process, wait for its end."""

    def reading(self) -> AbstractContextManager[RegistryStatements]: ...

    def together(self) -> AbstractContextManager[None]:
        """What this thread reads and writes in it is one transaction."""

    def close(self) -> None: ...
