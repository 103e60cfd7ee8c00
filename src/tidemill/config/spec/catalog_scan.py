"""What stands under `catalog_scan:`."""

from __future__ import annotations

from pydantic import Field

from tidemill.contracts import Config


class CatalogScanning(Config):
    """The source's catalog against the registry, by interval: docs/schemas.md. PostgreSQL, MySQL and MariaDB."""

    enabled: bool = Field(default=True, description="Compare the catalog with the registry while the pipeline runs.")
    interval_seconds: float = Field(default=300, ge=1, description="Seconds between two scans.")
    timeout_seconds: float = Field(
        default=30, gt=0, description="Seconds that the database may be silent before a scan gives up."
    )
