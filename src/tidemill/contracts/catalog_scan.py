"""What a source promises whose catalog can be compared with the schema registry while its stream goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tidemill.model.table import Table


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """A captured table as the catalog has it. `table` is its structure as the stream would give it, not numbered; None
    where it exists and no event of it comes: it is not published. `defaults` and `expressions` (of generated columns)
    are by column, as the server prints them. `unique` are the columns of its usable unique indexes."""

    name: str
    table: Table | None
    defaults: Mapping[str, str] = field(default_factory=dict)
    expressions: Mapping[str, str] = field(default_factory=dict)
    unique: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogScan:
    """Every captured table that exists, by name. One that is not here was dropped, or the document does not ask for it:
    both are told otherwise, by the stream or by who watches the publication."""

    tables: Mapping[str, ScannedTable]


@runtime_checkable
class CatalogReader(Protocol):
    """A snapshot reader that also reads the catalog as a whole."""

    def scan_catalog(self, seconds: float) -> CatalogScan:
        """Over a connection of its own, which is closed when it returns. Gives up when the server is silent for
        `seconds`. Reads catalogs and takes no lock on a table."""
