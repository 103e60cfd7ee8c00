"""LOOP TWO without Spark, as a process that can be killed: log -> lanes -> sink -> checkpoint.

    python -m tests.delivery.worker JOB    {"log", "state", "kind", "config", "lanes", "max_events"} as JSON

It calls what a Spark worker calls (`stream.batch.deliver`) and passes the same named points, in the same order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.errors import DeliveryError
from tidemill.log import LogReader
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.stream.batch import deliver
from tidemill.stream.plan import Lane, Plan
from tidemill.telemetry.failpoints import failpoint

PIPELINE, SOURCE = "proof", "shop"


def main(job: dict[str, Any]) -> None:
    log = LogReader(job["log"])
    store = FileCheckpoints(FileConfig(), state_dir=Path(job["state"]))
    kept = store.load(PIPELINE) or Checkpoint(log.head(), Position(""))
    plan = Plan(
        PIPELINE, SOURCE, job["log"], PIPELINE, job["run"], ((job["kind"], job["config"]),),
        delivered=kept.offset, retry_seconds=60.0,
    )  # fmt: skip
    lanes = job["lanes"]
    while kept.offset < log.tail().offset:
        end = log.plan(kept.offset, max_events=job["max_events"], max_bytes=1 << 20)
        for lane in range(lanes):
            answers = deliver(plan, Lane(kept.offset, end, lane, lanes, "hash"))
            for receipt in (answer.receipt for answer in answers):
                if not receipt.ok:
                    raise DeliveryError(receipt.error, where=f"events {kept.offset} to {end - 1}, lane {lane}")
        failpoint("stream.delivered")
        kept = store.save(PIPELINE, Checkpoint(end, log.position_at(end)), expect=kept.version)
        failpoint("stream.checkpointed")
    store.close()


if __name__ == "__main__":
    main(orjson.loads(sys.argv[1]))
