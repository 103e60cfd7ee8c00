"""`tidemill run FILE…`: runs pipelines until stopped, and shows how they do.

A terminal gets a live table; anything else gets a line now and then (`--json`: one object per line). The first
SIGINT or SIGTERM drains: what was captured is delivered and checkpointed. A second one stops at once. Nothing is lost
either way.
"""

from __future__ import annotations

import math
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import terminal
from tidemill.cli.target import Files, load_pipelines

if TYPE_CHECKING:
    from tidemill.service.run.status import PipelineStatus

app = terminal.commands()

_STARTING = "Spark is starting (some seconds; longer the first time on a machine, when kernels are compiled)"
_CONNECTING = "Spark is up, capture connects to the source"
_DELIVERING = "What the source had is captured; the rest of it is delivered now"
_REFRESH_SECONDS = 0.1
# For the batches under way, when somebody will not wait for the drain.
_HURRY_SECONDS = 2.0


@app.command()
def run(
    files: Files = None,
    env: Annotated[bool, typer.Option("--env", help="Run the pipeline that TIDEMILL__… variables give.")] = False,
    drain: Annotated[float, typer.Option(help="Seconds that a stop may take to deliver what was captured.")] = 30,
    interval: Annotated[float, typer.Option(help="Seconds between lines when there is no terminal.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Deliver what is there now, then exit.")] = False,
    profile_start: Annotated[bool, typer.Option("--profile-start", help="Say what the start took.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Run the pipelines of one or more files until stopped.

    Ctrl-C delivers what was captured and ends; pressed twice it ends at once. Nothing is lost either way."""
    pipelines = load_pipelines(files or [], "run", env=env)

    from tidemill.model.columns import leave_out_pandas

    leave_out_pandas()

    from tidemill.service.run.once import check_ends, find_undelivered, refuse_schedules
    from tidemill.service.run.spark_session import begin_java
    from tidemill.service.run.start_profile import StartProfile

    profile = StartProfile()
    profile.note("Python, imports, documents")
    if not once:
        refuse_schedules(pipelines)
    check_ends(pipelines, once=once)
    java = begin_java(pipelines)  # while the rest is imported

    from tidemill.cli.run_view import LineView, LiveTable
    from tidemill.service.run import interrupts
    from tidemill.service.runtime import Runtime
    from tidemill.telemetry import events

    ending = {pipeline.name for pipeline in pipelines if once or pipeline.spec.trigger.once}
    live = sys.stdout.isatty() and not as_json
    events.configure()
    with ExitStack() as stack:
        stop, hurry = stack.enter_context(interrupts.listen())
        view = stack.enter_context(LiveTable()) if live else LineView(interval, as_json=as_json)
        # A live table must not be torn apart by what is logged.
        said = pipelines[0].state_path / "events.log" if live else None
        runtime = stack.enter_context(Runtime(said=said, java=java))
        names = [runtime.add(pipeline) for pipeline in pipelines]
        view.say(_STARTING)
        if profile_start:
            profile.install()
            runtime.subscribe(on_batch=lambda name, report: profile.note_batch(name))
        runtime.start(*names, once=once)
        view.say(_CONNECTING)
        while not stop.wait(_REFRESH_SECONDS) and any(_goes_on(status, once) for status in runtime.statuses()):
            view.show(runtime.statuses())
            if profile_start and profile.is_complete(names):
                view.show_start(profile.stages(pipelines))
                profile_start = False
        # What was asked for is delivered, however long that takes; who cannot wait sends a signal.
        seconds = math.inf if once and not stop.is_set() else drain
        draining = threading.Thread(target=runtime.drain, args=names, kwargs={"seconds": seconds}, name="drain")
        draining.start()
        if seconds == math.inf and any(status.lag_events for status in runtime.statuses()):
            view.say(_DELIVERING)
        while draining.is_alive():
            view.show(runtime.statuses())
            if hurry.wait(_REFRESH_SECONDS) or (seconds == math.inf and stop.is_set()):
                runtime.stop(*names, seconds=_HURRY_SECONDS)
        view.show(runtime.statuses())
        errors = [error for error in map(runtime.error, names) if error is not None]
        errors += find_undelivered([status for status in runtime.statuses() if status.name in ending])
    if errors:
        for error in errors[1:]:
            terminal.show_error(error, as_json=as_json)
        raise errors[0]


def _goes_on(status: PipelineStatus, once: bool) -> bool:
    return status.state not in ("failed", "stopped") and not (once and status.caught_up)
