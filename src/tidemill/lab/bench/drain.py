"""Runs a pipeline until it has delivered a backlog, and says what that took: what the database benches share.

The clock starts when capture begins to stream and ends when the last batch has its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill import config
from tidemill.capture.status import read_status
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.config.spec import Batch, CommitPolicy, Sharding
from tidemill.errors import DeliveryError, SourceError
from tidemill.lab.bench.material import Material
from tidemill.lab.bench.processes import ProcessSampler, peak_rss_mb
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import COMMIT_TIME, POSITION, Block, Op
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.service.run.capture_process import CaptureProcess
from tidemill.service.run.pipeline_run import PipelineRun
from tidemill.service.run.status import State
from tidemill.state import open_store
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport
from tidemill.telemetry.tracer import Tracer

LIMIT_SECONDS = 600.0
_BATCHES = 5  # of a run, the first of which does not count
Spec = tuple[str, dict[str, Any]]
_BEFORE_SECONDS, _WATCH_SECONDS = 0.02, 0.1  # until the stream is open, and as the supervisor does


def drain(
    pipeline: config.Pipeline, spark: Any, rows: int, *, rest_seconds: float = 0.0
) -> tuple[float, dict[str, Any]]:
    """Seconds, and facts: CPU and memory by part, batches, their reports. `rest_seconds`: nothing comes for so long
    before it begins."""
    watched: list[tuple[float, BatchReport]] = []
    run = Observed(pipeline, spark, lambda report: watched.append((time.time(), report)))
    watch: ProcessSampler | None = None
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        prime(pipeline.log_uri)
        run.start_stream()
        while not watched and time.monotonic() < deadline:
            time.sleep(0.05)
        watched.clear()
        time.sleep(rest_seconds)
        run.start()
        run.delivered = 0
        while run.delivered < rows:
            status = run.watch()
            if status.state is State.FAILED or time.monotonic() > deadline:
                raise run.error or DeliveryError("the bench run did not finish", where=pipeline.name)
            if watch is None and (seen := read_status(pipeline.state_path)) and seen.streaming_since:
                watch = ProcessSampler().start()
            time.sleep(_WATCH_SECONDS if watch else _BEFORE_SECONDS)
        assert watch is not None
        watch.stop()
        capture = read_status(pipeline.state_path)
        assert capture is not None
        spent = watched[-1][0] - capture.streaming_since
        fact = {
            "cpu": watch.cpu_seconds(), "rss": watch.peak_rss_mb(), "batches": len(watched),
            "capture_hwm": peak_rss_mb(capture.pid), "reports": watched, "log": pipeline.log_uri,
        }  # fmt: skip
        return spent, fact
    finally:
        run.stop()


def capture_alone(pipeline: config.Pipeline, rows: int) -> tuple[float, dict[str, Any]]:
    """The same without the stream: from the first byte to the last event in the log."""
    process = CaptureProcess(pipeline)
    watch: ProcessSampler | None = None
    log: LogReader | None = None
    began = 0.0
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        process.start()
        while log is None or log.tail().offset < rows:
            status = process.watch()
            if time.monotonic() > deadline:
                raise SourceError("the bench run did not finish", where=pipeline.name)
            if watch is None and status is not None and status.streaming_since:
                watch, began, log = ProcessSampler(0.05).start(), status.streaming_since, LogReader(pipeline.log_uri)
            time.sleep(0.005)
        spent = time.time() - began
        assert watch is not None
        assert process.pid is not None
        watch.stop()
        return spent, {"cpu": watch.cpu_seconds(), "capture_hwm": peak_rss_mb(process.pid)}
    finally:
        process.stop()


def prime(log_uri: str) -> None:
    """A few made-up events in the log: delivering them starts the query's processes before any clock does."""
    column = Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER))
    table = Table("", "", "warm_up", (column,), ("id",)).with_fingerprint()
    numbers = pa.array(range(100), pa.uint64())
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": numbers,
            "op": pa.array([int(Op.INSERT)] * 100, pa.uint8()),
            "position": pa.array([""] * 100).dictionary_encode().cast(POSITION),
            "tx_id": numbers,
            "commit_time": pa.array([0] * 100, COMMIT_TIME),
            "ordinal": numbers.cast(pa.uint32()),
            "after": pa.StructArray.from_arrays([numbers.cast(pa.int64())], ["id"]),
        }
    )
    log = LogWriter.open(log_uri, LogConfig.model_validate({}))
    log.append(Committed((Block(table, batch),), 100, ((100, Position("")),)))
    log.close()


class Observed(PipelineRun):
    """A pipeline whose batches the bench also sees."""

    def __init__(
        self,
        pipeline: config.Pipeline,
        spark: Any,
        on_batch: Callable[[BatchReport], None],
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(pipeline, spark, tracer=tracer)
        self._bench_sees = on_batch
        self.delivered = 0

    def _on_batch(self, report: BatchReport) -> None:
        super()._on_batch(report)
        self._bench_sees(report)
        self.delivered += report.events


def drain_log(
    spark: Any, material: Material, directory: Path, sink: Spec, *, processors: Sequence[Spec] = (), lanes: int = 0
) -> float:
    """A prepared log through Spark, without capture: events a second, in micro-batches. The first batch, which starts
    Spark's processes, is not counted. `lanes`: as the pipeline would by itself, if 0."""
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
    tail, until = LogReader(material.log).tail().offset, time.monotonic() + LIMIT_SECONDS
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
