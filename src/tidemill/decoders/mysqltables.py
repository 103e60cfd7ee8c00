"""Which structure a table of MySQL or MariaDB had at a place of the binlog (invariant 6)."""

from __future__ import annotations

from tidemill.decoders._mycatalog import CatalogColumn, CatalogDatabase, CatalogTable

__all__ = ["CatalogColumn", "CatalogDatabase", "CatalogTable"]
