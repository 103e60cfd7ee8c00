"""`tidemill run FILE…`: runs pipelines until stopped, and shows how they do.

A terminal gets a live table; anything else gets a line now and then (`--json`: one object per line). The first
SIGINT or SIGTERM drains: what was captured is delivered and checkpointed. A second one stops at once. Nothing is lost
either way.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import terminal
from tidemill.service.status import State

app = terminal.commands()

_REFRESH_SECONDS = 0.1
# For the batches under way, when somebody will not wait for the drain.
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
    from tidemill.cli.run_view import LineView, LiveTable
    from tidemill.service import interrupts
    from tidemill.service.runtime import Runtime
    from tidemill.telemetry import events

    pipelines = config.load_all(files)
    stop, hurry = interrupts.listen()
    live = sys.stdout.isatty() and not as_json
    events.configure()
    with ExitStack() as stack:
        view = stack.enter_context(LiveTable()) if live else LineView(interval, as_json=as_json)
        # A live table must not be torn apart by what is logged.
        runtime = stack.enter_context(Runtime(said=pipelines[0].state_path / "events.log" if live else None))
        names = [runtime.add(pipeline) for pipeline in pipelines]
        runtime.start(*names)
        while not stop.wait(_REFRESH_SECONDS) and any(s.state is not State.FAILED for s in runtime.statuses()):
            view.show(runtime.statuses())
        draining = threading.Thread(target=runtime.drain, args=names, kwargs={"seconds": drain}, name="drain")
        draining.start()
        while draining.is_alive():
            view.show(runtime.statuses())
            if hurry.wait(_REFRESH_SECONDS):
                runtime.stop(*names, seconds=_HURRY_SECONDS)
        view.show(runtime.statuses())
        errors = [error for error in map(runtime.error, names) if error is not None]
    if errors:
        for error in errors[1:]:
            terminal.show_error(error, as_json=as_json)
        raise errors[0]
