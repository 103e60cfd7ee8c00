"""`tidemill worker --pipeline NAME`: one pipeline in a process of its own, steered through the state store."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing
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
    metrics_auth: installation.MetricsAuth = "none",
    tls_cert: installation.TlsCert = None,
    tls_key: installation.TlsKey = None,
    tls_client_ca: installation.TlsClientCa = None,
    allow_env: installation.AllowEnv = None,
    root: installation.Root = None,
    allow_code: installation.AllowCode = False,
    watch_files: installation.WatchFiles = False,
    drain: installation.Drain = 30,
    lease_seconds: Annotated[float, typer.Option(help="How soon another process may take over from this one.")] = 10,
    dispatched: Annotated[bool, typer.Option("--dispatched", hidden=True, help="End with standard input.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Run a pipeline of an installation until stopped. Servers of the state store start, pause and stop it."""
    try:
        from tidemill.api.ports import Address, LiveCertificate, TlsFiles, check_lease_seconds, serve_metrics
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{error.name} is not installed", where="tidemill worker", fix='Run: pip install "tidemill[server]"'
        ) from error
    from tidemill.service.run import interrupts
    from tidemill.service.server.dispatch import METRICS_SECRET
    from tidemill.service.server.tokens import Tokens
    from tidemill.service.server.worker import run_worker
    from tidemill.state import open_installation
    from tidemill.telemetry import events
    from tidemill.telemetry.metrics import Metrics

    check_lease_seconds(lease_seconds)
    address = None if metrics == "none" else Address.of(metrics, "--metrics")
    wants_token = installation.choose(metrics_auth, "--metrics-auth", "none", "token") == "token"
    tls = TlsFiles(tls_cert, tls_key, tls_client_ca)
    tls.check()
    uri = installation.state_uri(state, state_dir)
    events.configure()
    counted = Metrics()
    with interrupts.listen() as (stop, hurry), ExitStack() as ports:
        if dispatched:
            threading.Thread(target=_await_end_of_input, args=(stop,), name="server", daemon=True).start()
        if address is not None:
            callers: Tokens | str | None = os.environ.get(METRICS_SECRET) if dispatched else None
            if wants_token:
                callers = Tokens(ports.enter_context(closing(open_installation(uri))))
            context = tls.context()
            ports.enter_context(LiveCertificate(tls, context))
            url, stop_metrics = serve_metrics(address, counted.registry, context, callers)
            ports.callback(stop_metrics)
            line = f"metrics on {url}"
            terminal.say_line({"message": line} if as_json else line)
        run_worker(
            uri,
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
            watch_files=watch_files,
        )


def _await_end_of_input(stop: threading.Event) -> None:
    """The server that started this worker is gone, or asks it to end."""
    while os.read(0, 4096):
        pass
    stop.set()
