"""One pass of a pipeline's processors over a lane's share of a batch, into a spool (deliver.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

import orjson

from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.stream.batch.plan import Plan
from tidemill.stream.lane.chain import EventFailure
from tidemill.stream.lane.pool import Tools
from tidemill.stream.lane.rows import join
from tidemill.stream.lane.spool import Spool


@dataclass(frozen=True, slots=True)
class ProcessedShare:
    """`counts` and `learned` as they travel in a lane's result; `learned` is empty if the lane may be written."""

    failures: Mapping[Offset, EventFailure]
    counts: str
    learned: str


def process_share(
    tools: Tools, plan: Plan, delivery: Delivery, spool: Spool, stored: Collection[Offset] = ()
) -> ProcessedShare:
    """Fills the spool. `ProcessingError` where an event or a processor is to stop the pipeline. `stored`: dead letters
    that the driver has; a share with others, or that learned, is processed once more before it is written."""
    run = tools.chain(plan.processors, plan.source).begin(plan.known)
    spool.fill(run.blocks(join(iter(delivery))))
    if not run.learned and run.failures.keys() <= set(stored):
        run.report()
    return ProcessedShare(
        run.failures,
        orjson.dumps([asdict(count) for count in run.counts]).decode(),
        orjson.dumps(run.learned).decode() if run.learned else "",
    )
