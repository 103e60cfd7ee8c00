"""Positions of a Turso file.

14@1794902931     change 14 of the change table, recorded in that second
14@1794902931/2   ... and the second statement after it that stands in no record: a look at the schema has found it

Turso numbers changes from the largest that is there: a table that was emptied begins at 1 again. So the last change
that was delivered is never removed, and must be the one that we have seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemill.errors import ConfigError
from tidemill.model.position import Ordering, Position
from tidemill.sources._shared.errors import RECOVER
from tidemill.sources._shared.sqlite_catalog import quote
from tidemill.sources.turso.client import CdcForm, TursoFile
from tidemill.sources.turso.errors import CdcReset

_FORM = re.compile(r"(\d{1,19})@(\d{1,12})(?:/(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class CdcPlace:
    """After change `number`, recorded at `second`, and after the statements up to `found`, which no record tells."""

    number: int
    second: int
    found: int = 0

    @classmethod
    def parse(cls, position: str, where: str = "") -> CdcPlace:
        found = _FORM.fullmatch(position)
        if not found:
            raise ConfigError(
                f'"{position}" is no position of a Turso file', where=where,
                fix="It looks like 14@1794902931: the number of a change, and the second in which it was recorded.",
            )  # fmt: skip
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    def text(self) -> Position:
        found = f"/{self.found}" if self.found else ""
        return Position(f"{self.number}@{self.second}{found}")

    @property
    def order(self) -> tuple[int, int]:
        return self.number, self.found


def compare(a: Position, b: Position) -> Ordering | None:
    one, other = CdcPlace.parse(a), CdcPlace.parse(b)
    if one.number == other.number and one.second != other.second:
        return None
    if one.order == other.order:
        return Ordering.SAME
    return Ordering.BEFORE if one.order < other.order else Ordering.AFTER


def further(after: Position, confirmed: Position | None, where: str) -> CdcPlace:
    place = CdcPlace.parse(after, where)
    last = CdcPlace.parse(confirmed, where) if confirmed else place
    return last if last.order > place.order else place


def check(file: TursoFile, form: CdcForm, place: CdcPlace, where: str) -> None:
    """Whether the change table still has all that follows `place` (invariant 7)."""
    last, _ = file.last(form)
    if last < place.number:
        raise CdcReset(
            f"the change table ends at change {last}, we have seen change {place.number}: it was emptied or made anew,"
            " or an older copy of the file was restored", where=where, fix=RECOVER,
        )  # fmt: skip
    if not place.number:
        rows = file.rows(f"SELECT min(change_id) FROM {quote(form.table)}")
        if last and rows[0][0] != 1:
            raise CdcReset(f"changes 1 to {rows[0][0] - 1} are gone", where=where, fix=RECOVER)
        return
    rows = file.rows(f"SELECT change_time FROM {quote(form.table)} WHERE change_id = ?", [place.number])
    if not rows or int(rows[0][0]) != place.second:
        raise lost_change(place, bool(rows), where)


def lost_change(place: CdcPlace, another: bool, where: str) -> CdcReset:
    """`another`: there is one of this number, and it is not the one that we have seen."""
    return CdcReset(
        f"change {place.number}, the last that we have seen, is {'another one now' if another else 'gone'}: the change"
        " table was emptied, or an older copy of the file was restored", where=where, fix=RECOVER,
    )  # fmt: skip
