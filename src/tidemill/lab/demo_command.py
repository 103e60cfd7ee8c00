"""The options of `tidemill demo`; demo.py, which takes seconds to import, does the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import terminal
from tidemill.errors import ConfigError

app = terminal.commands()


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the shop is under load.", min=1)] = 15,
    source: Annotated[str, typer.Option(help="postgres, or sqlite, which needs no server at all.")] = "postgres",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files and the log in ./tidemill-demo.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Watch changes of a real database arrive through Spark. Needs nothing and leaves nothing behind."""
    if source not in ("postgres", "sqlite"):
        raise ConfigError(f'no demo has a source "{source}"', fix="Give postgres or sqlite.")
    from tidemill.lab.demo import play

    play(seconds, source, keep=keep, as_json=as_json)
