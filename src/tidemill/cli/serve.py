"""`tidemill serve`: pipelines as a service, with a REST API, gRPC and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import installation, terminal
from tidemill.errors import EnvironmentProblem

app = terminal.commands()


@app.command()
def serve(
    config: installation.Files = None,
    state: installation.State = None,
    state_dir: installation.StateDir = Path(".tidemill"),
    api: Annotated[str, typer.Option(help="Where the API listens.")] = "127.0.0.1:8080",
    metrics: Annotated[
        str, typer.Option(help="Where Prometheus reads metrics; `none` for nowhere.")
    ] = "127.0.0.1:9000",
    grpc: Annotated[str, typer.Option(help="Where gRPC listens; `none` for nowhere.")] = "127.0.0.1:50051",
    auth: Annotated[str, typer.Option(help="token, or `none`: no authentication, only on loopback.")] = "token",
    metrics_auth: installation.MetricsAuth = "none",
    tls_cert: installation.TlsCert = None,
    tls_key: installation.TlsKey = None,
    tls_client_ca: installation.TlsClientCa = None,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Requests a second that one token may make.", show_default=False)
    ] = None,
    allow_env: installation.AllowEnv = None,
    root: installation.Root = None,
    allow_code: installation.AllowCode = False,
    watch_files: installation.WatchFiles = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="Run no pipeline here: `tidemill worker` does, each in its own process.")
    ] = False,
    dispatch: Annotated[
        str, typer.Option(help="`process`: start such a worker for each pipeline, and again when it dies.")
    ] = "none",
    drain: installation.Drain = 30,
    lease_seconds: Annotated[
        float, typer.Option(help="How soon another server of the state store takes over from one that is gone.")
    ] = 10,
    as_json: terminal.AsJson = False,
) -> None:
    """Run pipelines as a service until stopped: SIGTERM drains, SIGHUP reads the files of --config again."""
    try:
        from tidemill.api.ports import Address
        from tidemill.api.serve import ServerSettings, run_server
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{error.name} is not installed", where="tidemill serve", fix='Run: pip install "tidemill[server]"'
        ) from error
    from tidemill.telemetry import events

    dispatches = installation.choose(dispatch, "--dispatch", "none", "process") == "process"
    confined: installation.Confined = {"allow_env": allow_env, "root": root, "allow_code": allow_code}
    events.configure()
    settings = ServerSettings(
        Address.of(api, "--api"),
        None if metrics == "none" else Address.of(metrics, "--metrics"),
        installation.state_uri(state, state_dir),
        auth=installation.choose(auth, "--auth", "token", "none") == "token",
        metrics_auth=installation.choose(metrics_auth, "--metrics-auth", "none", "token") == "token",
        certificate=tls_cert,
        key=tls_key,
        client_ca=tls_client_ca,
        rate=rate,
        drain_seconds=drain,
        grpc=None if grpc == "none" else Address.of(grpc, "--grpc"),
        lease_seconds=lease_seconds,
        watch_files=watch_files,
        dispatch=installation.worker_command(
            config, state, state_dir, drain=drain, lease_seconds=lease_seconds, **confined
        ) if dispatches else None,
        control=installation.control_settings(
            config, state, state_dir, runs=frozenset() if workers or dispatches else None, **confined
        ),
    )  # fmt: skip
    run_server(settings, lambda line: terminal.say_line({"message": line} if as_json else line))
