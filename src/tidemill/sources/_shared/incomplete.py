"""Tables whose copy at the destinations is not the table any more, until an operator accepts that.

A mark stays, over restarts, until an operator has copied the table and accepts it (`tidemill recover FILE --table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from tidemill.contracts import Notice, Schemas


@dataclass(frozen=True, slots=True)
class TableMarks:
    """What one kind of source remembers of its marked tables: since when, and why in words of its own."""

    name: str

    def read(self, schemas: Schemas) -> dict[str, list[str]]:
        document = schemas.recall(self.name)
        found: dict[str, list[str]] = orjson.loads(document) if document else {}
        return found

    def write(self, schemas: Schemas, marks: Mapping[str, list[str]]) -> None:
        schemas.remember(self.name, orjson.dumps(dict(marks)) if marks else None)


def incomplete_notice(table: str, since: str, why: str) -> Notice:
    return Notice(
        "table-incomplete", table, f"changes of {table} after {since} may be missing: {why}",
        f'Copy the table again ("tidemill snapshot start FILE --table {table}"; rows that were deleted'
        " meanwhile you remove yourself), let the pipeline catch up and stop it, then accept the mark:"
        f' "tidemill recover FILE --table {table}".',
    )  # fmt: skip
