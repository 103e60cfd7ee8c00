"""What `serve` and `worker` are both told of an installation: its files, its state store, what posted documents may."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

if TYPE_CHECKING:
    from tidemill.service.server.dispatch import WorkerCommand
    from tidemill.service.server.document_set import ControlSettings

Files = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", help="A pipeline file or a directory of them; may be repeated.", show_default=False),
]
State = Annotated[
    str | None,
    typer.Option(
        help="The state store: postgresql://…, or a file.", show_default="STATE_DIR/state.sqlite",
        envvar="TIDEMILL_STATE",
    ),
]  # fmt: skip
StateStore = Annotated[
    str | None,
    typer.Option(
        "--state", help="The server's state store: postgresql://…, or its file.",
        show_default="STATE_DIR/state.sqlite", envvar="TIDEMILL_STATE",
    ),
]  # fmt: skip
StateDir = Annotated[Path, typer.Option(help="Where pipelines of the API keep their state.")]
InstallationDir = Annotated[Path, typer.Option("--state-dir", help="The server's, with the store if it is a file.")]
AllowEnv = Annotated[
    list[str] | None,
    typer.Option(help="A variable that documents of the API may use; may be repeated.", show_default=False),
]
Root = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH", help="A directory below which they may name files; may be repeated.", show_default=False
    ),
]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Let them run code of their own here.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate of its ports, PEM.", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(help="Its key, PEM.", show_default=False)]
TlsClientCa = Annotated[
    Path | None, typer.Option(help="Serve only clients with a certificate of this CA, PEM.", show_default=False)
]
MetricsAuth = Annotated[
    str, typer.Option(help="`token`: metrics want a token, too, one that is for all pipelines.")
]  # fmt: skip
WatchFiles = Annotated[
    bool, typer.Option("--watch-files", help="Read the files of --config again when they change, as after SIGHUP.")
]
Drain = Annotated[float, typer.Option(help="Seconds that a stop may take to deliver what was captured.")]


def refuse_empty(value: str | None, option: str) -> None:
    """A variable of a script that is not set must not mean everything, or another place."""
    from tidemill.errors import ConfigError

    if value is not None and not value.strip():
        raise ConfigError(f"{option} is empty", where=option, fix="Leave it out, or say which. Nothing was changed.")


def state_uri(state: str | None, directory: Path) -> str:
    return state or str(directory.expanduser().absolute() / "state.sqlite")


class Confined(TypedDict):
    """What documents of the API may reach."""

    allow_env: Sequence[str] | None
    root: Sequence[str] | None
    allow_code: bool


def choose(value: str, option: str, *known: str) -> str:
    from tidemill.errors import ConfigError

    if value not in known:
        raise ConfigError(f'"{value}" is not known', where=option, fix=f"There are: {', '.join(known)}.")
    return value


def worker_command(
    files: Sequence[Path] | None, state: str | None, directory: Path, *, allow_env: Sequence[str] | None,
    root: Sequence[str] | None, allow_code: bool, drain: float, lease_seconds: float,
) -> WorkerCommand:  # fmt: skip
    """A worker with what this server was told; its metrics are on loopback, and the server shows them."""
    from tidemill.service.server.dispatch import METRICS_SECRET, WorkerCommand

    given = ["--state-dir", str(directory), "--drain", str(drain), "--lease-seconds", str(lease_seconds)]
    for option, values in (("--config", files), ("--allow-env", allow_env), ("--root", root)):
        given += [each for value in values or () for each in (option, str(value))]
    given += ["--allow-code"] if allow_code else []
    return WorkerCommand(
        (sys.executable, "-m", "tidemill", "worker", "--dispatched", "--metrics", "127.0.0.1:0", *given, "--pipeline"),
        {METRICS_SECRET: secrets.token_hex(32), **({"TIDEMILL_STATE": state} if state else {})},
    )


def control_settings(
    files: Sequence[Path] | None, state: str | None, directory: Path, *, allow_env: Sequence[str] | None,
    root: Sequence[str] | None, allow_code: bool, runs: frozenset[str] | None,
) -> ControlSettings:  # fmt: skip
    """`runs` are the pipelines that this process runs; None for all."""
    from tidemill.config.confine import Confinement
    from tidemill.service.server.document_set import ControlSettings

    for each in root or ():
        refuse_empty(each, "--root")
    roots = tuple(Path(each).expanduser().absolute() for each in root or ())
    return ControlSettings(
        files=tuple(files or ()), state_dir=directory.expanduser().absolute(), runs=runs,
        state_uri=state if state and "://" in state else None,
        confinement=Confinement(roots, frozenset(allow_env or ()), allow_code),
    )  # fmt: skip
