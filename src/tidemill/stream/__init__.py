"""LOOP TWO: the change log, through Spark, into the sinks (loop.py); and the log as Spark tables (rowview.py).

session    a Spark session whose small batches are cheap; gateway starts its Java, daemon is the parent of its Python
           workers, early/ lets a planning process start slowly
source     the streaming source: its rows are receipts; plan is what travels to the tasks
admission  when a batch is worth taking, where it ends, how many lanes it gets
lanes      which rows go to which lane
batch      one lane of one batch, in a worker: read, write to every sink, answer; pool keeps the sinks between batches
quarantine writes dead letters of events that a sink will never take; letterbox stores them, in the driver
attempt    what came back from the lanes, and what to send again; failures says why
policy     which sinks move together in a group, and where that puts the checkpoint; ledger keeps the groups' positions
pins       Spark's directory against our checkpoint
loop       the loop itself, one per group; report is what it tells of each batch
rowview    the log as typed Spark rows (rowtypes)
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes `format("tidemill")`, the row view, known to any Spark session."""
    from tidemill.stream import rowview

    rowview.register(spark)
