"""What `serve` and `worker` are both told of an installation: its files, its state store, what posted documents may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
StateDir = Annotated[Path, typer.Option(help="Where pipelines of the API keep their state.")]
AllowEnv = Annotated[
    list[str] | None,
    typer.Option(help="A variable that documents of the API may use; may be repeated.", show_default=False),
]
Root = Annotated[
    list[Path] | None,
    typer.Option(help="A directory below which they may name files; may be repeated.", show_default=False),
]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Let them run code of their own here.")]
Drain = Annotated[float, typer.Option(help="Seconds that a stop may take to deliver what was captured.")]


def state_uri(state: str | None, directory: Path) -> str:
    return state or str(directory.expanduser().absolute() / "state.sqlite")


def control_settings(
    files: Sequence[Path] | None, state: str | None, directory: Path, *, allow_env: Sequence[str] | None,
    root: Sequence[Path] | None, allow_code: bool, runs: frozenset[str] | None,
) -> ControlSettings:  # fmt: skip
    """`runs` are the pipelines that this process runs; None for all."""
    from tidemill.config.confine import Confinement
    from tidemill.service.server.document_set import ControlSettings

    roots = tuple(each.expanduser().absolute() for each in root or ())
    return ControlSettings(
        files=tuple(files or ()), state_dir=directory.expanduser().absolute(), runs=runs,
        state_uri=state if state and "://" in state else None,
        confinement=Confinement(roots, frozenset(allow_env or ()), allow_code),
    )  # fmt: skip
