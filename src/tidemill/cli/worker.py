"""`tidemill worker --pipeline NAME`: one pipeline in a process of its own, steered through the state store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import installation, terminal
from tidemill.errors import EnvironmentProblem

app = terminal.commands()


@app.command()
def worker(
    pipeline: Annotated[
        list[str], typer.Option("--pipeline", "-p", help="Which pipeline; may be repeated.", show_default=False)
    ],
    config: installation.Files = None,
    state: installation.State = None,
    state_dir: installation.StateDir = Path(".tidemill"),
    metrics: Annotated[str, typer.Option(help="Where Prometheus reads metrics; `none` for nowhere.")] = "none",
    allow_env: installation.AllowEnv = None,
    root: installation.Root = None,
    allow_code: installation.AllowCode = False,
    drain: installation.Drain = 30,
    lease_seconds: Annotated[float, typer.Option(help="How soon another process may take over from this one.")] = 10,
    as_json: terminal.AsJson = False,
) -> None:
    """Run a pipeline of an installation until stopped. Servers of the state store start, pause and stop it."""
    try:
        from tidemill.api.serve import Address, check_lease_seconds, serve_metrics
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{error.name} is not installed", where="tidemill worker", fix='Run: pip install "tidemill[server]"'
        ) from error
    from tidemill.service.run import interrupts
    from tidemill.service.server.worker import run_worker
    from tidemill.telemetry import events
    from tidemill.telemetry.metrics import Metrics

    check_lease_seconds(lease_seconds)
    address = None if metrics == "none" else Address.of(metrics, "--metrics")
    events.configure()
    counted = Metrics()
    with interrupts.listen() as (stop, hurry), ExitStack() as ports:
        if address is not None:
            url, stop_metrics = serve_metrics(address, counted)
            ports.callback(stop_metrics)
            line = f"metrics on {url}"
            terminal.say_line({"message": line} if as_json else line)
        run_worker(
            installation.state_uri(state, state_dir),
            installation.control_settings(
                config,
                state,
                state_dir,
                allow_env=allow_env,
                root=root,
                allow_code=allow_code,
                runs=frozenset(pipeline),
            ),
            counted,
            lease_seconds=lease_seconds,
            drain_seconds=drain,
            stop=stop,
            hurry=hurry,
        )
