"""The time of day as files, stores and answers have it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """ISO 8601 in UTC with milliseconds: of two such texts the later one is the greater."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
