"""The schema registry of a pipeline in the state store: `contracts.RegistryDatabase`.

Used where the store is a PostgreSQL that several servers share: who takes a pipeline over has the versions that its
events name, and the history of tables without which a binlog cannot be decoded. In a SQLite store the tables stay
empty: there the registry is a file beside the log. Each pipeline counts its own sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from tidemill.contracts.registry_database import RegistryTables

if TYPE_CHECKING:
    from tidemill.state.migrations import Rows
    from tidemill.state.store import Database

TABLES = ("registry_versions", "registry_structures", "registry_memory")


class StateRegistry:
    def __init__(self, database: Database, pipeline: str) -> None:
        self._database, self._pipeline = database, pipeline
        self.where = f"{database.where}, pipeline {pipeline}"
        self.tables = RegistryTables(*TABLES, pipeline)
        self._open: tuple[int, Rows] | None = None

    def writing(self) -> AbstractContextManager[Rows]:
        mine = self._mine()
        return self._database.writing(self._pipeline) if mine is None else nullcontext(mine)

    def reading(self) -> AbstractContextManager[Rows]:
        mine = self._mine()
        return self._database.reading() if mine is None else nullcontext(mine)

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._database.writing(self._pipeline) as rows:
            self._open = threading.get_ident(), rows
            try:
                yield
            finally:
                self._open = None

    def _mine(self) -> Rows | None:
        """The transaction that this thread has."""
        opened = self._open
        return opened[1] if opened is not None and opened[0] == threading.get_ident() else None

    def close(self) -> None:
        self._database.close()
