"""`tidemill`: the table of commands, and what happens when one fails.

A command lives in its own module (`cli/validate.py`, ...) that has a Typer `app`; it is imported when the
command is called, so that `tidemill --help` starts at once and `tidemill validate` never loads Spark. To add a
command, write its module and a line in `COMMANDS`.

Exit codes: 0 ok, 1 runtime, 2 configuration or usage, 3 environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tidemill import __version__
from tidemill.cli import terminal
from tidemill.errors import EnvironmentProblem, TidemillError

COMMANDS = {
    "demo": "Watch it work: a database, a small shop, events that arrive.",
    "run": "Run the pipelines of one or more files until stopped.",
    "validate": "Check pipeline files and show what they resolve to.",
    "doctor": "Check that all is there; each failure says how to mend it.",
    "schema": "Print the JSON Schema of pipeline files, for editors.",
    "log": "Look inside the change log: ls, cat, stats.",
    "checkpoints": "See or move how far a pipeline has come: show, history, set.",
    "dlq": "Events that a sink will never take: ls, show, replay, purge.",
    "stream": "The queue of a pgstream sink: ls, pull, ack, replay and more.",
    "resync": "Accept a gap after a lost position, and capture from now on.",
    "adopt": "Make a copied or restored state directory the pipeline's own.",
    "bench": "Measure speed: postgres, mysql, sinks, profile.",
}


# These show or measure the product and are no part of running it; they come with their servers and loads.
LAB = {"demo", "bench"}


def module_of(command: str) -> str:
    return f"tidemill.lab.{command}" if command in LAB else f"tidemill.cli.{command}"


class Commands(TyperGroup):
    """Lists commands from the table alone; imports a command's module when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, about in COMMANDS.items():
            if importlib.util.find_spec(module_of(name)):
                self.add_command(TyperCommand(name, help=about))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = get_command(importlib.import_module(module_of(name)).app)
            command.name = name
        return name, command, rest


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tidemill {__version__}")
        raise typer.Exit


@app.callback()
def tidemill(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Change data capture on Spark: one YAML file, every change in order, nothing lost."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Always ends in `SystemExit`. An error that has an explanation shows no traceback; with --json it is JSON too."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        get_command(app).main(args=given, prog_name="tidemill")
    except (TidemillError, OSError) as error:
        problem = error if isinstance(error, TidemillError) else _of_the_system(error)
        terminal.show_error(problem, as_json="--json" in given)
        raise SystemExit(problem.exit_code) from None


def _of_the_system(error: OSError) -> TidemillError:
    """A file that cannot be read or written: the system says why, and its name where. Anything else is a fault of ours,
    and keeps its traceback."""
    if error.filename is None:
        raise error
    return EnvironmentProblem(
        f"{error.strerror or type(error).__name__}",
        where=str(error.filename),
        fix=f"User {os.getuid()} needs the right to use it, and room on that disk.",
    )
