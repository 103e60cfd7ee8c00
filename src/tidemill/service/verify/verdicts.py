"""What `tidemill verify` says of a table."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.contracts import RowFault, ValuePair
from tidemill.model.snapshot import Bound


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """A row that is not as it should be. `columns`: which differ; `values`: how, if that was asked for."""

    key: Bound
    fault: RowFault
    columns: tuple[str, ...] = ()
    values: tuple[ValuePair, ...] = ()


@dataclass(frozen=True, slots=True)
class RowRepair:
    """`sent` rows were asked for by the snapshot of that number; -1: the whole table. `deleted` rows are gone from the
    sink. `arrived`: the sink has had what was sent. `kept`: why extra rows were not deleted."""

    sent: int = 0
    snapshot: int = 0
    deleted: int = 0
    arrived: bool = True
    kept: str = ""


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """`keys` are all that are known to be wrong; with `more` there may be others. `moving` rows changed too often to be
    judged. `passed`: the sink had passed the place of the last look, so that no difference is a delay. `left_out`:
    columns that were not compared. `repair`: what was done; `keys` are those that were still wrong afterwards.
    `error`, `fix`: the table could not be compared at all."""

    table: str
    rows: int = 0
    keys: tuple[KeyVerdict, ...] = ()
    more: bool = False
    moving: int = 0
    passed: bool = True
    left_out: tuple[str, ...] = ()
    repair: RowRepair | None = None
    error: str = ""
    fix: str = ""

    def count(self, fault: RowFault) -> int:
        return sum(key.fault is fault for key in self.keys)

    @property
    def is_compared(self) -> bool:
        return not self.error

    @property
    def is_equal(self) -> bool:
        return not self.keys and not self.error and not self.more
