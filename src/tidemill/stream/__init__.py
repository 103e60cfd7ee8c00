"""LOOP TWO: the change log, through Spark, into the sinks (loop.py). What stands here runs in the driver.

loop          the loop itself, one per group of sinks
report        what it says of each batch
trace         the spans of a batch, where traces are asked for
trigger       how the loop gets its batches: from Spark, or in real time over lanes that stand
batch         one batch: when it is worth taking, where it ends, which lane gets what, what came back
lane          one lane of one batch, in a Spark worker: read, process, write to every sink, return receipts
schema        tables that change on the way: the barrier, quarantine, what processors give, what sensing saw
position      how far each group is, the checkpoint that follows from it, and the batch under way
dead_letters  stores what a sink will never take; superseded follows its rows, which may have newer events
snapshot      a snapshot's chunks as Spark tasks
spark         a session whose small batches are cheap, the streaming source, the log as Spark rows
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes `format("tidemill")`, the row view, known to any Spark session."""
    from tidemill.stream.spark import rowview

    rowview.register(spark)
