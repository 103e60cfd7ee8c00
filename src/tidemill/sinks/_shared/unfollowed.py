"""Rows that cannot follow a change of the source's structure: what sinks that keep tables write down about them.

The stream brings rows that change. What an ADD COLUMN or a RENAME COLUMN did to all other rows a sink has to do itself,
and where it cannot it says so: in the column's comment, in the same statement or transaction as the change, so that
neither can be without the other. Whoever opens the table reads it there, and so does every worker, which passes it on
with its receipts. It stands until somebody has mended the rows and takes the comment away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import orjson

from tidemill.contracts import Notice
from tidemill.errors import Refused
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.table import Column, Table
from tidemill.schema.diff import diff

MARK = "tidemill: "
CODE = "rows-left-behind"
UNKNOWN = "the source does not tell what they have there"


def added_comment(column: Column, since: Offset, keep: str = "NULL", why: str = "") -> str:
    """For a column that is new, where it is not known what the rows that are there have in it, or cannot be written."""
    why = why or (column.initial.unknown if column.initial is not None else "") or UNKNOWN
    return f"{MARK}rows that did not change since offset {since} keep {keep} here: {why}"


def replaced_comment(since: Offset) -> str:
    return (
        f"{MARK}rows that did not change since offset {since} keep the values of an earlier column of this name here: "
        "it was dropped at the source, and added again"
    )


def swapped_comment(was: str, since: Offset) -> str:
    """For a column that took over the name of another one, where the destination cannot rename both at once."""
    return (
        f'{MARK}rows that did not change since offset {since} have this column\'s values in "{was}": columns exchanged '
        "their names at the source, and the destination cannot follow that in one step"
    )


def already_there_comment(since: Offset) -> str:
    """For a column that the source added, where the destination had one of that name."""
    return (
        f"{MARK}rows that did not change since offset {since} keep what they had here: the destination had a column of "
        "this name before the source added it"
    )


def name_taken_comment(was: str, since: Offset) -> str:
    """For a column that the source renamed, where the destination had one of the new name besides."""
    return (
        f'{MARK}rows that did not change since offset {since} have this column\'s values in "{was}": it was renamed at '
        "the source, and the destination had a column of the new name already"
    )


class Looks:
    """What a worker has to say of the tables that it looked at, for its receipts. What is wrong with a table is said
    with every receipt, until the worker looks again; that nothing is wrong, or nothing any more, once after each look.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[Notice, ...]] = {}
        self._fresh: set[str] = set()  # since the last receipt

    def record(self, table: str, found: tuple[Notice, ...]) -> None:
        self._found[table] = found
        self._fresh.add(table)

    def forget(self) -> None:
        """What was seen may have been taken back with its transaction."""
        self._found.clear()
        self._fresh.clear()

    def pack(self) -> str:
        fresh, self._fresh = self._fresh, set()
        said = {table: found for table, found in self._found.items() if found or table in fresh}
        return orjson.dumps({table: [asdict(n) for n in each] for table, each in said.items()}).decode() if said else ""


def refuse_older(delivery: Delivery, table: Table, where: str, *, defaults: bool) -> None:
    """For sinks that go by names: a dead letter of before a change that gave its columns other names, or its names
    other columns. Without `defaults`, also of before a column whose rows have a value that the record would lack."""
    if delivery.newest is None or delivery.newest.lineage == table.lineage:
        return
    change = diff(table, delivery.newest)
    columns = {was.name for was, _ in change.renamed + change.replaced}
    if not defaults:
        columns |= {c.name for c in change.added if not (is_known(c) and not c.initial.value.is_valid)}  # type: ignore[union-attr]
    if columns:
        raise Refused(
            f"the dead letter is of an older structure of {table.full_name}: "
            f"{', '.join(sorted(columns))} came or changed since", where=where,
            fix=f"`tidemill verify FILE --table {table.full_name}` says whether the row is as the source has it; with "
            "--repair it is sent again if not. Then purge the dead letter.",
        )  # fmt: skip


def is_known(column: Column) -> bool:
    return column.initial is not None and column.initial.value is not None


def notices(
    sink: str, table: Table, target: str, comments: Mapping[str, str], clear: Mapping[str, str]
) -> tuple[Notice, ...]:
    """Of the columns whose comment says something. `clear`: the statement that takes a column's comment away."""
    found = []
    for column, comment in comments.items():
        _, mark, said = comment.rpartition(MARK)
        if mark:
            found.append(
                Notice(
                    CODE, table.full_name, f'sink "{sink}", {target}, column "{column}": {said}.',
                    f"Copy the values of {_names(table)} and {column} from the source into those rows yourself. Then "
                    f"run {clear[column]} at the destination, and start the pipeline again.",
                )
            )  # fmt: skip
    return tuple(found)


def _names(table: Table) -> str:
    return ", ".join(table.key) or "the key"
