"""The capture process of one pipeline: `python -m tidemill.capture`, started by `tidemill run`.

It gets its pipeline, pickled, on standard input (a command line or a file would show secrets). It stops on SIGTERM,
SIGINT, or when its standard input closes: if the supervisor is killed, nobody holds the source's slot any more.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import TypeVar

from tidemill.capture.confirmed import import_confirmed, read_confirmed
from tidemill.capture.loop import Capture, Limits
from tidemill.capture.signals import call_on_signal
from tidemill.capture.status import StatusFile
from tidemill.config.pipeline import Pipeline
from tidemill.disk.private import make_directory
from tidemill.errors import TidemillError, is_retryable
from tidemill.log.entry import Tail
from tidemill.log.writer import LogWriter
from tidemill.model.position import Offset, Position
from tidemill.retry import RetryPolicy
from tidemill.schema.registry import SchemaRegistry
from tidemill.telemetry import events
from tidemill.telemetry.context import bind_process

Result = TypeVar("Result")


def main() -> int:
    events.configure()
    stop = threading.Event()
    call_on_signal(stop.set)
    pipeline: Pipeline = pickle.load(sys.stdin.buffer)
    bind_process(pipeline=pipeline.name, stage="capture")
    threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
    make_directory(pipeline.state_path)
    status = StatusFile(pipeline.state_path)
    try:
        run(pipeline, stop, status)
    except TidemillError as error:
        error.fix = _fill_in(error.fix, pipeline)
        status.last_error(error)
        status.update(stage="failed", exit_code=error.exit_code)
        events.fail("capture.failed", code=error.code, error=error.what, where=error.where, fix=error.fix)
        return error.exit_code
    status.update(stage="stopped")
    return 0


def run(pipeline: Pipeline, stop: threading.Event, status: StatusFile) -> None:
    """Sets the source up, then captures until `stop`."""
    spec, state = pipeline.spec, pipeline.state_path
    status.update(stage="setup")
    source = pipeline.build_source()
    schemas = SchemaRegistry(state / "registry.sqlite")
    log = _patiently(lambda: _open_log(pipeline), stop, status)
    if log is None:
        return
    kept = pipeline.build_state()
    _patiently(lambda: import_confirmed(kept, pipeline.name, state), stop, status)
    known = _patiently(lambda: read_confirmed(kept, pipeline.name, state, log.tail.offset), stop, status)
    resumed = bool(log.tail.position or known)
    _patiently(lambda: source.setup(log.tail.position or known, schemas), stop, status)
    ahead = spec.log.max_bytes
    if spec.batch.max_inflight is not None:
        ahead = min(ahead, spec.batch.max_inflight * spec.batch.max_bytes)
    limits = Limits(ahead, max(1, min(1000, spec.batch.max_events // 8)), spec.ack == "logged")

    def notices() -> tuple[dict[str, str], ...]:
        return tuple({**asdict(notice), "fix": _fill_in(notice.fix, pipeline)} for notice in source.notices())

    def progress(visible: int) -> None:
        tail = log.tail
        status.update(
            stage="cdc", events=status.count(visible), offset=tail.offset, position=tail.position,
            lag_bytes=source.lag_bytes(), notices=notices(), error={},
        )  # fmt: skip

    def streaming() -> None:
        status.streaming(source.began, resumed=resumed, notices=notices())

    def confirmed(position: Position, offset: Offset) -> None:
        kept.confirm(pipeline.name, position, offset)
        progress(0)

    try:
        Capture(
            source, log, schemas, limits, stop,
            confirmed=known, on_confirmed=confirmed, on_stream=streaming, on_progress=progress,
            on_error=status.last_error,
        ).run()  # fmt: skip
    finally:
        log.close()
        schemas.close()
        kept.close()


def _fill_in(fix: str, pipeline: Pipeline) -> str:
    """Sources do not know the document; advice that can be pasted names it."""
    return fix.replace("tidemill resync FILE", f"tidemill resync {pipeline.file} --pipeline {pipeline.name}")


def _open_log(pipeline: Pipeline) -> LogWriter:
    """An empty log begins where the source resumes after the checkpoint, so that offsets keep their meaning
    (invariant 5)."""
    with closing(pipeline.build_checkpoints()) as store:
        saved = store.load(pipeline.name)
    base = Tail(saved.begins, saved.position) if saved else None
    return LogWriter.open(
        pipeline.log_uri, pipeline.spec.log, base=base, delivered=saved.offset if saved else None,
        ours=pipeline.owns_log,
    )  # fmt: skip


def _patiently(step: Callable[[], Result], stop: threading.Event, status: StatusFile) -> Result | None:
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


def _watch_parent(stop: threading.Event) -> None:
    # The bare descriptor: a thread inside a buffered reader would abort the interpreter's exit.
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
