"""The notice that a table's copy at the destinations is not the table any more, until an operator accepts that."""

from __future__ import annotations

from tidemill.contracts import Notice


def incomplete_notice(table: str, since: str, why: str) -> Notice:
    return Notice(
        "table-incomplete", table, f"changes of {table} after {since} may be missing: {why}",
        f'Copy the table again ("tidemill snapshot start FILE --table {table}"; rows that were deleted'
        " meanwhile you remove yourself), let the pipeline catch up and stop it, then accept the mark:"
        f' "tidemill recover FILE --table {table}".',
    )  # fmt: skip
