"""SQL, and the events it must become. `tests/decoders/binlog/record.py` lets servers turn the SQL into bytes, kept in
`tests/decoders/binlog/golden/`.

The expected events are written here by hand from the SQL, never taken from the decoder.
"""

from __future__ import annotations

from tests.decoders.binlog.cases.case import Case
from tests.decoders.binlog.cases.rows import ROWS
from tests.decoders.binlog.cases.transactions import TRANSACTIONS
from tests.decoders.binlog.cases.values import VALUES

__all__ = ["CASES", "Case"]

CASES: tuple[Case, ...] = (*ROWS, *TRANSACTIONS, *VALUES)
