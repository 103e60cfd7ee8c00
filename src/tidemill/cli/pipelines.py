"""`tidemill pipelines …`: the pipelines of a server, over its API, or of the state store of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import installation, terminal
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.api.client import RemotePipeline, ServerClient
    from tidemill.api.local_client import LocalClient

app = terminal.commands("Pipelines of a server, or of a state store.")


@dataclass(slots=True)
class NamedInstallation:
    """Which installation is meant. A state store that is named on the line comes before a server of the environment."""

    server: str = ""
    token: str = ""
    store: str = ""
    state_dir: Path = Path(".tidemill")


def _target(ctx: typer.Context) -> NamedInstallation:
    if not isinstance(ctx.obj, NamedInstallation):
        server, token = ctx.obj or (None, None)
        ctx.obj = NamedInstallation(server or "", token or "")
    return ctx.obj


def _use_server(ctx: typer.Context, value: str) -> str:
    """Wherever on the line it stands; what comes last counts."""
    if value:
        _target(ctx).server = value
    return value


def _use_token(ctx: typer.Context, value: str) -> str:
    if value:
        _target(ctx).token = value
    return value


def _use_store(ctx: typer.Context, value: str) -> str:
    if value:
        _target(ctx).store, _target(ctx).server = value, ""
    return value


def _use_state_dir(ctx: typer.Context, value: Path | None) -> Path | None:
    if value is not None:
        _target(ctx).state_dir, _target(ctx).server = value, ""
    return value


Server = Annotated[
    str, typer.Option("--server", callback=_use_server, help="Address of the server; or TIDEMILL_SERVER.",
                      show_default=False),
]  # fmt: skip
Token = Annotated[
    str, typer.Option("--token", callback=_use_token, help="Token for it; rather in TIDEMILL_TOKEN.",
                      show_default=False),
]  # fmt: skip
Store = Annotated[
    str, typer.Option("--store", callback=_use_store, help="Without a server: the state store; or TIDEMILL_STATE.",
                      show_default="STATE_DIR/state.sqlite"),
]  # fmt: skip
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", callback=_use_state_dir, help="Without a server: where its state is.",
                              show_default=".tidemill"),
]  # fmt: skip
Name = Annotated[str, typer.Argument(help="The pipeline's name.", show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for the record of changes.")]


@app.callback()
def pipelines(server: Server = "", token: Token = "", store: Store = "", state_dir: StateDir = None) -> None:
    """Pipelines of a server: its address in TIDEMILL_SERVER, or `--server URL` anywhere on the line. Without one, those
    of the state store of this machine."""


@app.command()
def ls(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only those in this state.", show_default=False)] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only those with it: team=shop.", show_default=False)] = None,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List pipelines and their states."""
    client = _client(ctx)
    found = list(client.pipelines(state=state, labels=label or ()))
    if as_json:
        terminal.show_json([_data(each) for each in found])
        return
    terminal.show_table(
        ("pipeline", "status", "desired", "origin", "error"),
        [(p.name, p.status, p.desired, p.origin, (p.error or {}).get("what", "")) for p in found],
        empty=_nothing(client, filtered=bool(state or label)),
    )


@app.command()
def get(
    ctx: typer.Context,
    name: Name,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show a pipeline with its spec, secrets masked, always as JSON."""
    terminal.show_json(_data(_client(ctx).pipeline(name)))


@app.command()
def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Option("--file", "-f", help="A pipeline file.", show_default=False)],
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Create the pipelines of a file, or change them to what it says. The server expands its ${VAR}."""
    from tidemill.service.documents import read_document

    _show(_client(ctx, create=True).apply(read_document(file)), as_json)


_VERBS = {
    "start": "Start a pipeline, also after a failure.",
    "pause": "Pause a pipeline; its position is kept.",
    "resume": "Resume a paused pipeline.",
    "stop": "Stop a pipeline after the batches under way.",
    "restart": "Stop a pipeline and start it.",
    "drain": "Deliver what was captured, then stop.",
}


def _add_verb(verb: str, what: str) -> None:
    @app.command(verb, help=what)
    def change(
        ctx: typer.Context,
        name: Name,
        reason: Reason = "",
        server: Server = "",
        token: Token = "",
        store: Store = "",
        state_dir: StateDir = None,
        as_json: terminal.AsJson = False,
    ) -> None:
        _show([_client(ctx).change(name, verb, reason=reason)], as_json)


for _verb, _what in _VERBS.items():
    _add_verb(_verb, _what)


@app.command()
def recover(
    ctx: typer.Context,
    name: Name,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Copy all captured tables again.")] = False,
    accept_gap: Annotated[bool, typer.Option("--accept-gap", help="Go on without the changes that are lost.")] = False,
    reason: Reason = "",
    yes: terminal.Yes = False,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """After a lost position: copy the tables again, or accept the gap."""
    if snapshot == accept_gap:
        raise ConfigError(
            "there are two ways to go on: --snapshot and --accept-gap", where="tidemill pipelines recover",
            fix="Choose one. --snapshot is the one after which nothing is missing.",
        )  # fmt: skip
    client = _client(ctx)
    if accept_gap:
        lost = f"what was changed at the source of {name} since capture stopped is never delivered"
        terminal.confirm(ConfigError, yes=yes)(lost)
    done = client.recover(name, "snapshot" if snapshot else "accept_gap", reason=reason)
    if as_json:
        terminal.show_json(done)
        return
    terminal.say(f"{name} captures what is committed after {done['to']}. Lost: {done['lost']}.")
    if done["snapshot"]:
        terminal.say(f"Start it: snapshot {done['snapshot']} copies all captured tables and makes it good.")
    else:
        terminal.say("Start it. The destinations lack what is lost: a snapshot copies the tables again.")


@app.command()
def delete(
    ctx: typer.Context,
    name: Name,
    yes: terminal.Yes = False,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Stop a pipeline and forget it; its state directory stays."""
    terminal.confirm(ConfigError, yes=yes)(f"pipeline {name} is stopped and its document forgotten")
    _client(ctx).delete(name)
    if as_json:
        terminal.show_json({"deleted": name})
    else:
        terminal.say(f"{name} is deleted")


@app.command()
def status(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this pipeline, with more.", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show how pipelines do: state, lag, position, last error."""
    client = _client(ctx)
    for found in _looks(client, name, interval if watch else None):
        if as_json:
            terminal.say_line(found[0] if name else found)
        elif name:
            terminal.say_line(_line(found[0]))
        else:
            terminal.show_table(
                ("pipeline", "state", "lag events", "lag seconds", "position", "last error"),
                [(s["name"], s["state"], s["lag_events"], round(s["lag_seconds"], 1), s["position"], _error(s))
                 for s in found],
                empty=_nothing(client),
            )  # fmt: skip


@app.command()
def runs(
    ctx: typer.Context,
    name: Name,
    now: Annotated[bool, typer.Option("--now", help="Run it now, beside its schedule.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    reason: Reason = "",
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show the runs of a pipeline that has a schedule, newest first."""
    client = _client(ctx)
    found = [client.run_now(name, reason=reason)] if now else client.runs(name, limit)
    if as_json:
        terminal.show_json(found)
        return
    columns = ("state", "slot", "actor", "started", "ended", "events", "attempts")
    terminal.show_table(
        (*columns, "error"),
        [(*(_cell(run[each]) for each in columns), (run["error"] or {}).get("what", "")) for run in found],
        empty=f"{name} has had no run yet." if client.pipeline(name).next_run else f"{name} has no schedule.",
    )


@app.command()
def events(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only of this pipeline.", show_default=False)] = None,
    server: Server = "",
    token: Token = "",
    store: Store = "",
    state_dir: StateDir = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print what happens, one JSON document a line, until Ctrl-C. --json changes nothing."""
    for event in _client(ctx).events(name):
        terminal.say_line({"event": event.kind, **event.data})


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _looks(
    client: ServerClient | LocalClient, name: str | None, interval: float | None
) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield [client.status(each) for each in ([name] if name else [each.name for each in client.pipelines()])]
        if interval is None:
            return
        time.sleep(interval)


def _line(status: dict[str, Any]) -> str:
    lag_bytes = "" if status["lag_bytes"] is None else f" {status['lag_bytes']}B"
    error = _error(status)
    return (
        f"{status['name']} {status['state']} {status['stage']} events={status['events']} "
        f"rate={status['events_per_second']:.0f}/s lag={status['lag_events']}ev {status['lag_seconds']:.1f}s{lag_bytes}"
        f" log={status['log_bytes']}B position={status['position'] or 'none'}"
        + (f" next_run={status['next_run']}" if status["next_run"] else "")
        + (f" error: {error}" if error else "")
    )


def _error(status: dict[str, Any]) -> str:
    """Of the pipeline, or else of its sinks."""
    if status["error"]:
        return str(status["error"]["what"])
    return "; ".join(f"{sink['id']}: {sink['error']}" for sink in status["sinks"] if sink["error"])


def _nothing(client: ServerClient | LocalClient, *, filtered: bool = False) -> str:
    if filtered:
        return f"No pipeline of {client.url} is like that."
    return f"{client.url} has no pipelines{client.whose}. `tidemill pipelines apply -f FILE` makes one."


def _client(ctx: typer.Context, *, create: bool = False) -> ServerClient | LocalClient:
    """`create`: a state store that is not there yet is made."""
    target = _target(ctx)
    if target.server:
        from tidemill.api.client import ServerClient, tls_of_environment

        return ServerClient(target.server, target.token or None, tls=tls_of_environment(os.environ))
    from tidemill.api.local_client import LocalClient
    from tidemill.service.server.local import LocalPlace

    state, directory = target.store or os.environ.get("TIDEMILL_STATE", ""), target.state_dir.expanduser().absolute()
    place = LocalPlace(installation.state_uri(state, directory), directory, "://" in state)
    return ctx.with_resource(LocalClient(place, create=create))


def _data(pipeline: RemotePipeline) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(pipeline)


def _show(pipelines: list[RemotePipeline], as_json: bool) -> None:
    if as_json:
        terminal.show_json([_data(each) for each in pipelines])
        return
    for each in pipelines:
        terminal.say(f"{each.name} is {each.status}" + (f": {each.error['what']}" if each.error else ""))
    sys.stdout.flush()
