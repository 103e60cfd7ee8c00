"""LOOP TWO: the change log, through Spark, into the sinks (loop.py). What stands here runs in the driver.

spark           a session whose small batches are cheap, the streaming source, the log as Spark rows
lane            one lane of one batch, in a Spark worker: read, process, write to every sink, answer
admission       when a batch is worth taking, where it ends, how many lanes it gets
lanes           which rows go to which lane; plan is what travels to the tasks
structures      the columns that processors give; known_file is their way to Spark's planning
dead_letters    stores what a sink will never take; superseded follows its rows, which may have newer events
schema_barrier  makes a schema change at every sink before rows go on; known_table is what a sink has since
decisions       what a decision on a schema change means for the barrier, and when the wait for one is over
quarantine_keeper  tables whose rows are left out until their schema change is decided
sensed          what lanes saw of the events' schemas, merged, compared and kept
snapshot        a snapshot's chunks as Spark tasks
attempt         what came back from the lanes, and what to send again; failures says why
policy          which sinks move together in a group, and where that puts the checkpoint; ledger keeps their positions
pins            Spark's directory against our checkpoint; pin_file is the batch under way in real time
ordering        how many lanes sinks and processors allow, and by what rows are spread
trace           the spans of a batch, where traces are asked for
loop            the loop itself, one per group; report is what it tells of each batch
dispatch        how the loop gets batches: from Spark (micro_batch), or in real time (realtime) over lanes that stand:
                standing is the driver's side of them, channel what is between
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes `format("tidemill")`, the row view, known to any Spark session."""
    from tidemill.stream.spark import rowview

    rowview.register(spark)
