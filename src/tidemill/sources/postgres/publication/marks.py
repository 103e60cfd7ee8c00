"""Tables whose copy at the destinations is not the table any more, because of what happened to the publication.

A mark stays, over restarts, until an operator has copied the table and accepts it (`tidemill recover FILE --table`). Of
a table that joins with rows in it and was never captured, it goes when the table has been copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemill.contracts import Notice
from tidemill.model.position import Position
from tidemill.sources.postgres.lsn import parse_lsn

INCOMPLETE, DROPPED = "table-incomplete", "table-dropped"
_REASONS = 8


@dataclass(frozen=True, slots=True)
class TableMark:
    """Something happened to `table` after `since` and before `until`, between two looks at the catalog. Without `since`
    it is about everything before `until`; without `until` it goes on. `absent`: it lacks what was in the table when it
    came into the publication, and at this position it was not there yet."""

    code: str
    table: str
    since: str
    until: str
    reasons: tuple[str, ...]
    absent: str = ""

    def is_made_good(self, copied: Mapping[str, Position]) -> bool:
        """A copy met the table in the publication: it has the rows from before, and the stream all others."""
        return bool(self.absent) and _lsn(copied.get(self.table, "")) >= _lsn(self.absent)

    def notice(self) -> Notice:
        because = "; ".join(self.reasons)
        accept = f'"tidemill recover FILE --table {self.table}"'
        if self.code == DROPPED:
            return Notice(
                self.code,
                self.table,
                f"{because} ({self._when()}); destinations keep the rows that they have",
                f"Remove them there if they should go, then stop the pipeline and accept it: {accept}.",
            )
        may_lack = f"changes of {self.table} {self._when()} may be missing: {because}"
        if self.absent:
            return Notice(
                self.code,
                self.table,
                may_lack,
                f'Copy it: "tidemill snapshot start FILE --table {self.table}". This notice goes when all of its rows'
                " are in the change log.",
            )
        return Notice(
            self.code,
            self.table,
            may_lack,
            f'Copy it again: "tidemill snapshot start FILE --table {self.table}"; rows that were deleted meanwhile you'
            f" remove yourself. When it has arrived, stop the pipeline and accept it: {accept}.",
        )

    def _when(self) -> str:
        if not self.until:
            return f"since {self.since}"
        return f"between {self.since} and {self.until}" if self.since else f"before {self.until}"


def merge(marks: Iterable[TableMark]) -> tuple[TableMark, ...]:
    """One for each code and table, in order of table; the wider range and both reasons."""
    found: dict[tuple[str, str], TableMark] = {}
    for mark in marks:
        known = found.get((mark.table, mark.code))
        found[mark.table, mark.code] = _join(known, mark) if known else mark
    return tuple(mark for _, mark in sorted(found.items()))


def _join(a: TableMark, b: TableMark) -> TableMark:
    """`b` is the later one: it says whether it still goes on."""
    since = min((a.since, b.since), key=_lsn) if a.since and b.since else ""
    until = max((a.until, b.until), key=_lsn) if b.until else ""
    reasons = dict.fromkeys((*a.reasons, *b.reasons))
    absent = b.absent if a.reasons == b.reasons else ""
    return replace(a, since=since, until=until, reasons=tuple(reasons)[-_REASONS:], absent=absent)


def _lsn(text: str) -> int:
    return parse_lsn(Position(text)) if text else 0
