"""Which pipeline a command means: a file with one of them, or a file and `--pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.config import Pipeline

File = Annotated[Path, typer.Argument(help="A pipeline file.", show_default=False)]
Which = Annotated[str | None, typer.Option("--pipeline", "-p", help="Which pipeline, if the file has several.")]


def choose(file: Path, name: str | None) -> Pipeline:
    from tidemill import config

    pipelines = config.load(file)
    chosen = [p for p in pipelines if name in (None, p.name)]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(p.name for p in pipelines)
    if name is None:
        raise ConfigError(
            f"the file has {len(pipelines)} pipelines", where=str(file), fix=f"Name one with --pipeline: {known}."
        )
    raise ConfigError(f'no pipeline is called "{name}"', where=str(file), fix=f"The file has: {known}.")


def pipeline_of(target: str, name: str | None) -> Pipeline | None:
    """A log can be looked at through its pipeline's file, or directly: then the pipeline is not known."""
    return None if "://" in target or Path(target).is_dir() else choose(Path(target), name)


def log_of(target: str, name: str | None) -> tuple[str, str]:
    """URI and source id."""
    chosen = pipeline_of(target, name)
    return (chosen.log_uri, chosen.source_id) if chosen else (target, "unknown")
