"""How long changes take while a snapshot is made, beside the same pipeline without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tidemill import config
from tidemill.capture.status import read_status
from tidemill.errors import DeliveryError
from tidemill.lab.bench import load
from tidemill.lab.bench.drain import LIMIT_SECONDS, Observed, prime
from tidemill.lab.bench.latency import summary
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.status import State
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.stream.report import BatchReport

_RATE, _AT_ONCE = 1000, 10
_WARM_SECONDS = 2.0
_IS_COPIED = attrgetter("is_copied")


def measure_latency(
    pipeline: config.Pipeline, spark: Any, database: Postgres, table: str, seconds: float
) -> dict[str, Any]:
    """Milliseconds from commit to checkpoint at 1,000 events a second: first without a snapshot, for `seconds`, then
    for as long as a copy of the table takes. The pipeline keeps its log, and copies nothing by itself."""
    reports: list[tuple[float, BatchReport]] = []
    run = Observed(pipeline, spark, lambda report: reports.append((time.time(), report)))
    try:
        prime(pipeline.log_uri)
        run.start_stream()
        _await(run, lambda: bool(reports))
        run.start()
        _await(run, lambda: (seen := read_status(pipeline.state_path)) is not None and seen.streaming_since > 0)
        _offer(run, database, _WARM_SECONDS)
        reports.clear()
        _offer(run, database, seconds)
        without = summary(pipeline.log_uri, reports, skip=_IS_COPIED)
        reports.clear()
        snapshot_requests.start(pipeline, [table], "")
        began = time.monotonic()
        _offer(run, database, LIMIT_SECONDS, lambda: snapshot_requests.status(pipeline)[0].state == "done")
        during = summary(pipeline.log_uri, reports, skip=_IS_COPIED)
        spent = time.monotonic() - began
    finally:
        run.stop()
    return {
        "latency_p50_ms": without["total"]["p50"],
        "latency_p99_ms": without["total"]["p99"],
        "latency_during_p50_ms": during["total"]["p50"],
        "latency_during_p99_ms": during["total"]["p99"],
        "latency_during_seconds": round(spent, 1),
        "latency_ratio": round(during["total"]["p50"] / without["total"]["p50"], 2),
    }


def _offer(run: Observed, database: Postgres, seconds: float, enough: Callable[[], bool] | None = None) -> None:
    """Commits events for so long, or until it is `enough`; back when the stream has delivered everything, of a known
    number of events those that capture has not seen by then, too."""
    due = run.delivered + load.count(_RATE, seconds, _AT_ONCE)
    with load.client(database.dsn(), _RATE, seconds, _AT_ONCE) as client:
        _await(run, lambda: client.exitcode is not None or (enough is not None and enough()))
        if client.exitcode:
            raise DeliveryError("the load did not come to its end", where=run.pipeline.name)
    _await(run, lambda: run.delivered >= due if enough is None else run.watch().lag_events == 0)


def _await(run: Observed, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not done():
        status = run.watch()
        if status.state is State.FAILED or time.monotonic() > deadline:
            raise run.error or DeliveryError("the bench run did not finish", where=run.pipeline.name)
        time.sleep(0.05)
