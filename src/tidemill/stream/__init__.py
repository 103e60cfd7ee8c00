"""LOOP TWO: the change log, through Spark, into the sinks (loop.py); and the log as Spark tables (rowview.py).

session   a Spark session whose small batches are cheap
source    the streaming source: plans batches, pins their lanes; its rows are receipts
lanes     which rows go to which lane
batch     one lane of one batch, in a worker: read, write to every sink, answer
policy    whose receipts let the checkpoint move
pins      Spark's directory against our checkpoint
loop      the loop itself
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes `format("tidemill")`, the row view, known to any Spark session."""
    from tidemill.stream import rowview

    rowview.register(spark)
