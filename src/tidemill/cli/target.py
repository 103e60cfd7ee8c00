"""Which pipeline a command means: a file with one of them, or a file and `--pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tidemill.config import Pipeline


def check_file(value: Path) -> Path:
    """A file that is not there is told while the command line is read: what reads it takes seconds to import."""
    if not value.exists():
        raise ConfigError("there is no such file", where=str(value), fix="Check the path.")
    return value


def check_files(value: list[Path] | None) -> list[Path] | None:
    for file in value or ():
        check_file(file)
    return value


def check_place(value: str) -> str:
    """A file, a directory or a URI."""
    if "://" not in value:
        check_file(Path(value))
    return value


File = Annotated[Path, typer.Argument(help="A pipeline file.", show_default=False, callback=check_file)]
Files = Annotated[list[Path] | None, typer.Argument(help="Pipeline files.", show_default=False, callback=check_files)]
Which = Annotated[str | None, typer.Option("--pipeline", "-p", help="Which pipeline, if the file has several.")]


def load_pipelines(files: Sequence[Path], command: str, *, env: bool) -> list[Pipeline]:
    """Of the files, or the one that the environment gives."""
    if bool(files) == env:
        raise UsageError(
            "give pipeline files, or --env", where=f"tidemill {command}",
            fix=f"`tidemill {command} --help` says more. TIDEMILL__… variables override files without --env too.",
        )  # fmt: skip
    from tidemill import config

    return [config.load_environment()] if env else config.load_all(files)


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
