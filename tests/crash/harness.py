"""What the proof needs of a database. One file per source implements it; everything else here is about any source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Literal, Protocol

Row = dict[str, Any]
"""A row as JSON shows it in an event."""

Tally = Counter[tuple[str, str]]
"""Events by (table, op)."""

Ending = Literal["fast", "immediate", "kill"]


class Session(Protocol):
    """One client under load. A move that the database refuses (deadlock, restart) is over, rolled back or not."""

    def move(self, kind: str, dice: Random) -> int:
        """About how many rows it changed."""

    def close(self) -> None: ...


class SourceHarness(Protocol):
    """One database with the tables of the proof.

    `MOVES` maps each kind of transaction to its weight; "large" and "ddl" are among them. `SPILLED` is a kind that
    capture writes to the log before its commit. `COUNTS_DDL`: `tally` has the events of schema changes; else they are
    not counted, and each new column must be told once.
    """

    MOVES: ClassVar[Mapping[str, float]]
    SPILLED: ClassVar[str]
    COUNTS_DDL: ClassVar[bool]

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """Tables and their key columns; an empty key means that rows are told apart by their values alone."""

    def create(self) -> None:
        """Tables, a few rows, and whatever `tally` counts with."""

    def source(self, name: str) -> dict[str, Any]:
        """`source:` of a pipeline document."""

    def ready(self) -> bool:
        """Whether the pipeline has set its source up: changes are captured from now on."""

    def session(self) -> Session: ...

    def restart(self, ending: Ending) -> None: ...

    def rows(self, table: str) -> list[Row]: ...

    def tally(self) -> Tally:
        """How many events all transactions that ever committed amount to, by the database's own account."""
