"""A history of structures, for a source whose stream does not describe its tables: MySQL's, MariaDB's.

Only such a source asks for it (`history_of`); what keeps the schema versions keeps this too, so that both are in one
file and survive together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidemill.contracts.source import Schemas
from tidemill.errors import RegistryError
from tidemill.model.position import Position


@dataclass(frozen=True, slots=True)
class Structure:
    """What a source noted about a name at a position, in words of its own; None when the name went away. `sequence`
    rises with every note."""

    sequence: int
    position: Position
    name: str
    document: bytes | None


@runtime_checkable
class StructureHistory(Schemas, Protocol):
    """Schemas beside which a source keeps how its tables were, to know the structure at an old position
    (invariant 6)."""

    def structures(self) -> list[Structure]:
        """Every note that was kept, oldest first."""

    def keep_structures(self, position: Position, documents: Mapping[str, bytes | None]) -> None:
        """Durable when it returns, all of them or none."""

    def forget_structures(self, after: int) -> None:
        """Notes with a higher sequence: what lies after the position at which a source resumes comes again."""


def history_of(schemas: Schemas) -> StructureHistory:
    """The same object, which must keep a history."""
    if not isinstance(schemas, StructureHistory):
        raise RegistryError(
            f"{type(schemas).__name__} keeps no history of structures, without which a binlog cannot be decoded",
            fix="Use the schema registry of the state directory.",
        )
    return schemas
