"""The capture process of one pipeline: `python -m tidemill.capture`, started by `tidemill run`.

It gets its pipeline, pickled, on standard input (a command line or a file would show secrets). It stops on SIGTERM,
SIGINT, or when its standard input closes: if the supervisor is killed, nobody holds the source's slot any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import TypeVar

from tidemill.capture.catalog_scan import build_scanner, run_beside
from tidemill.capture.confirmed import import_confirmed, read_confirmed
from tidemill.capture.effort import Effort
from tidemill.capture.lease import CaptureLease, CaptureTask, read_task
from tidemill.capture.loop import WAIT_SECONDS, Capture, Limits
from tidemill.capture.open_log import open_log
from tidemill.capture.recovery import NewBeginning, begin_anew
from tidemill.capture.requeue import Requeuer
from tidemill.capture.signals import call_on_signal
from tidemill.capture.snapshot import ChunkAdopter
from tidemill.capture.source_end import SourceEnd
from tidemill.capture.status import StatusFile
from tidemill.capture.trace import AppendTracer
from tidemill.config.advice import fill_in_data, fill_in_error
from tidemill.config.pipeline import Pipeline
from tidemill.contracts import Fencing, SilentSource, SlotHolder, SnapshotSource, StateStore
from tidemill.disk.private import make_directory
from tidemill.errors import PositionLost, TidemillError, is_retryable
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.columns import leave_out_pandas
from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import SnapshotMode
from tidemill.retry import RetryPolicy
from tidemill.schema.registry import SchemaRegistry
from tidemill.telemetry import events
from tidemill.telemetry.context import bind_process
from tidemill.telemetry.tracer import Tracer, open_tracer

Result = TypeVar("Result")


def main() -> int:
    leave_out_pandas()
    events.configure()
    stop = threading.Event()
    with call_on_signal(stop.set):
        return _run_task(stop)


def _run_task(stop: threading.Event) -> int:
    """The exit code."""
    task = read_task(0)
    pipeline, lease = task.pipeline, CaptureLease(task.until, trial=task.trial, held=task.held)
    bind_process(pipeline=pipeline.name, stage="capture")
    threading.Thread(target=lease.follow, args=(0, stop), name="lease", daemon=True).start()
    make_directory(pipeline.state_path)
    status = StatusFile(pipeline.state_path)
    tracer = open_tracer()
    try:
        run_recovering(task, stop, status, lease, tracer)
    except TidemillError as error:
        status.last_error(fill_in_error(error, pipeline))
        status.update(stage="failed", exit_code=error.exit_code)
        events.fail("capture.failed", code=error.code, error=error.what, where=error.where, fix=error.fix)
        return error.exit_code
    finally:
        if tracer is not None:
            tracer.close()
    status.update(stage="stopped")
    return 0


def run_recovering(
    task: CaptureTask, stop: threading.Event, status: StatusFile, lease: CaptureLease, tracer: Tracer | None = None
) -> None:
    """`run`, and after a lost position again where the document asks for it (`mode: when_needed`): once for each stream
    that there was, so that a server which loses every position is an error."""
    streamed = True
    while not stop.is_set():

        def note_stream() -> None:
            nonlocal streamed
            streamed = True

        try:
            run(task, stop, status, lease, on_stream=note_stream, tracer=tracer)
            return
        except PositionLost as error:
            if not streamed or not _is_recovered_by_itself(task.pipeline):
                raise
            streamed = False
            status.last_error(error)
            events.warn("recovery.began", code=error.code, error=error.what, where=error.where)
            _recover(task.pipeline, stop, status, lease)


def _is_recovered_by_itself(pipeline: Pipeline) -> bool:
    config = pipeline.snapshot_config
    return config is not None and config.mode is SnapshotMode.WHEN_NEEDED


def _recover(pipeline: Pipeline, stop: threading.Event, status: StatusFile, lease: CaptureLease) -> None:
    def begin() -> NewBeginning:
        with (
            closing(pipeline.build_state()) as state,
            closing(open_log(pipeline, state, lease.check, anew=True)) as log,
        ):
            return begin_anew(pipeline, log, lambda consequence: None, copy=True)

    if (done := _retry_until_stopped(begin, stop, status)) is not None:
        events.warn("recovery.copies", snapshot=done.snapshot, position=done.after, lost=done.lost)


def run(
    task: CaptureTask, stop: threading.Event, status: StatusFile, lease: CaptureLease,
    on_stream: Callable[[], None] = lambda: None, tracer: Tracer | None = None,
) -> None:  # fmt: skip
    """Sets the source up, then captures until `stop`."""
    pipeline = task.pipeline
    status.update(stage="setup")
    with (
        closing(pipeline.open_registry()) as schemas,
        closing(pipeline.build_state()) as kept,
    ):
        log = _retry_until_stopped(lambda: open_log(pipeline, kept, lease.check), stop, status)
        if log is not None:
            with closing(log):
                _capture(task, stop, status, log, schemas, kept, on_stream, tracer, lease)


def _capture(
    task: CaptureTask, stop: threading.Event, status: StatusFile, log: LogWriter, schemas: SchemaRegistry,
    kept: StateStore, on_stream: Callable[[], None], tracer: Tracer | None, lease: CaptureLease,
) -> None:  # fmt: skip
    pipeline = task.pipeline
    spec, state = pipeline.spec, pipeline.state_path
    source = pipeline.build_source()
    if isinstance(source, Fencing):
        source.takes_over = task.takes_over
    _retry_until_stopped(lambda: import_confirmed(kept, pipeline.name, state), stop, status)
    known = _retry_until_stopped(lambda: read_confirmed(kept, pipeline.name, state, log.tail.offset), stop, status)
    resumed = bool(log.tail.position or known)
    _retry_until_stopped(lambda: source.setup(log.tail.position or known, schemas), stop, status)
    undelivered = spec.log.max_bytes
    if spec.batch.max_inflight is not None:
        undelivered = min(undelivered, spec.batch.max_inflight * spec.batch.max_bytes)
    limits = Limits(
        undelivered, max(1, min(1000, spec.batch.max_events // 8)), spec.ack == "logged", spec.log.max_bytes
    )

    scanner = build_scanner(pipeline, source)

    def notices() -> tuple[dict[str, str], ...]:
        said = (*source.notices(), *(scanner.notices() if scanner is not None else ()))
        return tuple(fill_in_data(asdict(notice), pipeline) for notice in said)

    effort = Effort()

    def progress(visible: int) -> None:
        tail, (tables, table_bytes) = log.tail, effort.busiest()
        status.update(
            stage="cdc", events=status.count(visible), offset=tail.offset, position=tail.position,
            lag_bytes=source.lag_bytes(), notices=notices(), error={}, tables=tables,
            table_bytes=table_bytes, busy_seconds=effort.busy_seconds, appends=effort.appends,
            bytes=effort.bytes, undelivered_bytes=log.undelivered_bytes(),
            slot_bytes=source.slot_bytes() if isinstance(source, SlotHolder) else None,
        )  # fmt: skip

    def note_stream() -> None:
        on_stream()
        status.streaming(source.began, resumed=resumed, notices=notices())

    def note_confirmed(position: Position, offset: Offset) -> None:
        kept.confirm(pipeline.name, position, offset)
        progress(0)

    requeuer = Requeuer(log, LogReader(pipeline.log_uri), kept.schema_changes, pipeline.name, stop)
    trace = AppendTracer(tracer, pipeline.name, source) if tracer is not None else None
    adopter, end = None, None
    if isinstance(source, SnapshotSource):
        copied = pipeline.snapshot_config
        adopter = ChunkAdopter(
            source,
            log,
            LogReader(pipeline.log_uri),
            schemas,
            kept.snapshots,
            pipeline.name,
            most_bytes=undelivered // 2,
            filtered=copied.filters if copied is not None else (),
            quarantined=lambda: requeuer.tables,
            trace=trace,
        )
        _retry_until_stopped(adopter.begin, stop, status)
        end = SourceEnd(source) if task.once else None

    def adopt() -> int:
        if isinstance(source, SilentSource):
            status.note_reached(lambda: source.reached_position(log.tail.position), log.tail.offset)
        status.write_due()  # an idle stream says nothing more
        if end is not None and not requeuer.busy and end.look(log.tail.position):
            status.update(now=True, caught_up=True)
        if scanner is not None and scanner.has_news():
            status.update(now=True, notices=notices())  # an idle stream reports nothing by itself
        return adopter.turn(stop.is_set) if adopter is not None else 0

    def wait() -> float:
        return adopter.wait_seconds if adopter is not None else WAIT_SECONDS

    with run_beside(scanner):
        Capture(
            source, log, schemas, limits, stop,
            confirmed=known, on_confirmed=note_confirmed, on_stream=note_stream, on_progress=progress,
            on_error=status.last_error, adopt=adopt, wait=wait, requeue=requeuer.turn, trace=trace,
            accepted=lease.accepted, effort=effort, held=lease.held,
        ).run()  # fmt: skip


def _retry_until_stopped(step: Callable[[], Result], stop: threading.Event, status: StatusFile) -> Result | None:
    """A database that is not up yet, or a log that another process is just leaving, is waited for. None if stopped."""
    tries = RetryPolicy().begin(stop)
    while not stop.is_set():
        try:
            return step()
        except TidemillError as error:
            if not is_retryable(error):
                raise
            status.last_error(error)
            events.warn("capture.setup_waits", error=error.what, where=error.where)
            tries.pause()
    return None


if __name__ == "__main__":
    sys.exit(main())
