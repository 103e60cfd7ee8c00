"""Drains a prepared log through Spark into a sink, without capture: what benches of the stream alone share.

The clock runs from the first checkpoint of a stream to its last: the first batch starts Spark's processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.config.spec import Batch, CommitPolicy, Sharding
from tidemill.errors import DeliveryError
from tidemill.lab.bench.material import Material
from tidemill.log import LogReader
from tidemill.state import open_store
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport

_BATCHES = 5  # of a run, the first of which does not count
_LIMIT_SECONDS = 600.0

Spec = tuple[str, dict[str, Any]]


def drain_log(
    spark: Any, material: Material, directory: Path, sink: Spec, *, processors: Sequence[Spec] = (), lanes: int = 0
) -> float:
    """Events a second, first batch not counted, in micro-batches. `lanes`: as the pipeline would by itself, if 0."""
    directory.mkdir()
    times: list[tuple[float, int]] = []

    def note(report: BatchReport) -> None:
        times.append((time.monotonic(), report.end))

    policy = Policy.of("bench", CommitPolicy(mode="all"), {sink[1]["id"]: True})
    store, state = FileCheckpoints(FileConfig(), state_dir=directory), open_store(str(directory / "state.sqlite"))
    ledger = Ledger(policy, store, material.log, state=state, floor=lambda: 0)  # the next run reads the log again
    loop = StreamLoop(
        policy.groups[0], ledger, "bench", material.log, [sink], spark=spark, spark_dir=directory / "spark",
        batch=Batch(max_events=max(1, material.rows // _BATCHES), max_ms=1), processors=processors, on_batch=note,
        sharding=Sharding(mode="hash", count=lanes) if lanes else None,
    )  # fmt: skip
    tail, until = LogReader(material.log).tail().offset, time.monotonic() + _LIMIT_SECONDS
    loop.start()
    try:
        while loop.checkpoint.offset < tail:
            if not loop.running:
                loop.await_end(5)
            if time.monotonic() > until:
                raise DeliveryError("the bench run did not finish", where=sink[0])
            time.sleep(0.005)
    finally:
        loop.stop()
        state.close()
        store.close()
    (began, first), (ended, last) = times[0], times[-1]
    return (last - first) / (ended - began)
