"""`tidemill run FILE…`: runs pipelines until stopped, and shows how they do.

A terminal gets a live table; anything else gets a line now and then (`--json`: one object per line). The first
SIGINT or SIGTERM drains: what was captured is delivered and checkpointed. A second one stops at once. Nothing is lost
either way.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import terminal
from tidemill.errors import ConfigError, TidemillError
from tidemill.service.status import PipelineStatus, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.config import Pipeline

app = terminal.commands()

_WATCH_SECONDS = 0.1
# For the batches under way, after the drain.
_STOP_SECONDS = 60.0
_HURRY_SECONDS = 2.0


@app.command()
def run(
    files: Annotated[list[Path], typer.Argument(help="Pipeline files.", show_default=False)],
    drain: Annotated[float, typer.Option(help="Seconds that a stop may take to deliver what was captured.")] = 30,
    interval: Annotated[float, typer.Option(help="Seconds between lines when there is no terminal.")] = 5,
    as_json: terminal.AsJson = False,
) -> None:
    """Run the pipelines of one or more files until stopped (Ctrl-C drains; twice stops at once)."""
    from tidemill import config
    from tidemill.capture.signals import call_on_signal
    from tidemill.cli.run_view import LineView, LiveTable

    pipelines = config.load_all(files)
    stop, hurry = threading.Event(), threading.Event()

    call_on_signal(lambda: (hurry if stop.is_set() else stop).set())
    with ExitStack() as stack:
        live = sys.stdout.isatty() and not as_json
        view = stack.enter_context(LiveTable()) if live else LineView(interval, as_json=as_json)
        errors = run_pipelines(pipelines, stop=stop, hurry=hurry, on_status=view.show, drain_seconds=drain, quiet=live)
    if errors:
        for error in errors[1:]:
            terminal.show_error(error, as_json=as_json)
        raise errors[0]


def run_pipelines(
    pipelines: Sequence[Pipeline],
    *,
    stop: threading.Event,
    hurry: threading.Event | None = None,
    on_status: Callable[[list[PipelineStatus]], None] = lambda statuses: None,
    drain_seconds: float = 30,
    quiet: bool = False,
) -> list[TidemillError]:
    """Runs until `stop` is set or no pipeline is left running; returns what made pipelines fail.

    Pipelines share one Spark session; one that fails leaves the others alone. Raises `AlreadyRunning` before anything
    is started or written if another process works on one of them.
    """
    from tidemill.service.ownership import lock_pipeline

    with ExitStack() as held:
        for pipeline in pipelines:
            held.enter_context(lock_pipeline(pipeline))
        return _run_held(
            pipelines, stop=stop, hurry=hurry, on_status=on_status, drain_seconds=drain_seconds, quiet=quiet
        )


def _run_held(
    pipelines: Sequence[Pipeline],
    *,
    stop: threading.Event,
    hurry: threading.Event | None,
    on_status: Callable[[list[PipelineStatus]], None],
    drain_seconds: float,
    quiet: bool,
) -> list[TidemillError]:
    from tidemill.disk.private import open_file
    from tidemill.service.pipeline_run import PipelineRun
    from tidemill.sinks import stdout
    from tidemill.stream.session import close_session
    from tidemill.telemetry import events

    here = pipelines[0].state_path
    said = here / "events.log" if quiet else None
    if said is not None:
        events.configure(stream=os.fdopen(open_file(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a"))
    else:
        events.configure()
    stdout.announce()
    spark = _session(pipelines, here / "spark.log")
    runs: list[PipelineRun] = []
    hurry = hurry or threading.Event()
    # While capture connects and the queries start; a stop must not have to wait for it.
    warming = threading.Thread(target=_warm, args=(spark,), name="warm-up")
    try:
        for pipeline in pipelines:
            runs.append(PipelineRun(pipeline, spark, said=said))
            runs[-1].start()
        warming.start()
        while not stop.wait(_WATCH_SECONDS):
            on_status([each.watch() for each in runs])
            if all(each.status.state is State.FAILED for each in runs):
                break
        for each in runs:
            each.stop_capture()
        deadline = time.monotonic() + drain_seconds
        while not all(each.drained() for each in runs) and time.monotonic() < deadline and not hurry.wait(0.05):
            on_status([each.status for each in runs])
    finally:
        for each in runs:
            each.ask_to_stop()
        for each in runs:
            each.stop(_HURRY_SECONDS if hurry.is_set() else _STOP_SECONDS)
        on_status([each.status for each in runs])
        close_session(spark)
    return [each.error for each in runs if each.error is not None]


def _session(pipelines: Sequence[Pipeline], said: Path) -> SparkSession:
    """One for all of them; pipelines that ask for different clusters need different processes."""
    from tidemill.stream.policy import policy_of
    from tidemill.stream.session import create_session

    masters = sorted({pipeline.spec.spark.master for pipeline in pipelines})
    if len(masters) > 1:
        raise ConfigError(
            f"the pipelines name different Spark masters: {', '.join(masters)}",
            fix="Run them with one `tidemill run` for each master.",
        )
    conf: dict[str, str] = {}
    for pipeline in pipelines:
        for key, value in pipeline.spec.spark.conf.items():
            if conf.setdefault(key, value) != value:
                raise ConfigError(
                    f"the pipelines set {key} to {conf[key]} and to {value}",
                    where=f"pipeline {pipeline.name}",
                    fix="They share one Spark session: agree on a value, or run them in processes of their own.",
                )
    master, more = slots(masters[0], sum(len(policy_of(pipeline).groups) - 1 for pipeline in pipelines))
    return create_session("tidemill", master=master, conf=more | conf, said=said)


def slots(master: str, beside: int) -> tuple[str, dict[str, str]]:
    """The default master, with a slot more for each sink that moves by itself: it mostly waits for its destination, and
    must not take the core of a sink that the pipeline waits for. A master that somebody chose stays as it is."""
    if master != "local[*]" or not beside:
        return master, {}
    cores = len(os.sched_getaffinity(0))
    return f"local[{cores + beside}]", {"spark.default.parallelism": str(cores)}


def _warm(spark: SparkSession) -> None:
    from tidemill.stream.session import warm_up
    from tidemill.telemetry import events

    try:
        warm_up(spark)
    except Exception as error:  # noqa: BLE001  a session stopped meanwhile; the first batch only starts colder
        events.emit("stream.not_warmed", reason="the session ended before", kind=type(error).__name__)
