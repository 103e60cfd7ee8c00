"""What a component says of itself to an operator: a line of `tidemill doctor`, a standing notice."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `tidemill doctor`. `fix` says what to do, and is empty only when the check passed."""

    name: str
    outcome: Outcome
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator must know although the stream goes on: rows of a table may be missing, a pattern matches
    nothing yet. `code` is stable (`table-incomplete`), `subject` is what it is about (a table). It stands in every
    status until it is no longer true or an operator has accepted it."""

    code: str
    subject: str
    what: str
    fix: str
