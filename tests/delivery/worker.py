"""LOOP TWO without Spark, as a process that can be killed: log -> lanes -> sink -> checkpoint.

    python -m tests.delivery.worker JOB    {"log", "state", "kind", "config", "lanes", "max_events"} as JSON

with "processors" where there are any; what they teach is kept beside the checkpoint, as the driver keeps it.

It calls what a Spark worker calls (`stream.lane.deliver`) and passes the same named points, in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson

from tidemill import registry
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import DeliveryError
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.schema import known_file
from tidemill.stream.schema.structures import merge
from tidemill.telemetry.failpoints import failpoint

PIPELINE, SOURCE = "proof", "shop"


class Twice(BaseProcessor[ProcessorConfig]):
    """Makes two events of each."""

    Config: ClassVar[type[ProcessorConfig]] = ProcessorConfig

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            yield block.take(np.repeat(np.arange(block.rows), 2))


def with_twice() -> None:
    """As if it were installed."""
    load = registry.load
    registry.load = lambda family, name: Twice if (family, name) == ("processors", "twice") else load(family, name)


def main(job: dict[str, Any]) -> None:
    log = LogReader(job["log"])
    store = FileCheckpoints(FileConfig(), state_dir=Path(job["state"]))
    kept = store.load(PIPELINE) or Checkpoint(log.head(), Position(""))
    plan = Plan(
        PIPELINE, SOURCE, job["log"], PIPELINE, job["run"], ((job["kind"], job["config"]),),
        delivered=kept.offset, retry_seconds=60.0,
        processors=tuple((kind, config) for kind, config in job.get("processors", ())),
    )  # fmt: skip
    lanes, structures = job["lanes"], Path(job["state"]) / "structures.json"
    if structures.exists():
        plan = replace(plan, known=known_file.read(structures))
    while kept.offset < log.tail().offset:
        end = log.plan(kept.offset, max_events=job["max_events"], max_bytes=1 << 20)
        for lane in range(lanes):
            while (answers := deliver(plan, Lane(kept.offset, end, lane, lanes, "hash")))[0].learned:
                plan = replace(plan, known=merge(plan.known, orjson.loads(answers[0].learned)))
                known_file.write(structures, plan.known)
                failpoint("stream.structures_kept")
            for receipt in (answer.receipt for answer in answers):
                if not receipt.ok:
                    raise DeliveryError(receipt.error, where=f"events {kept.offset} to {end - 1}, lane {lane}")
        failpoint("stream.delivered")
        kept = store.save(PIPELINE, Checkpoint(end, log.position_at(end)), expect=kept.version)
        failpoint("stream.checkpointed")
    store.close()


if __name__ == "__main__":
    with_twice()
    main(orjson.loads(sys.argv[1]))
