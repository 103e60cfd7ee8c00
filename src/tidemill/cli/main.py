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
from tidemill.disk.output import discard_output
from tidemill.errors import EnvironmentProblem, TidemillError, UsageError

COMMANDS = {
    "demo": "Watch it work: a database, a small shop, events that arrive.",
    "run": "Run the pipelines of one or more files until stopped.",
    "serve": "Run pipelines as a service, with a REST API and metrics.",
    "worker": "Run one pipeline of an installation in a process of its own.",
    "token": "Tokens, with which a server is used: create, ls, revoke.",
    "state": "The state store as one file, to move it: export, import.",
    "pipelines": "Pipelines of a server or a state store: ls, apply, pause, …",
    "validate": "Check pipeline files and show what they resolve to.",
    "doctor": "Check that everything is there; failures say how to fix it.",
    "schema": "Print the JSON Schema of pipeline files, for editors.",
    "log": "Look inside the change log: ls, cat, stats.",
    "process": "Try processors on a few events: before, after, time, limits.",
    "checkpoints": "See or move how far a pipeline has come: show, history, set.",
    "snapshot": "Copy what is in the tables: start, status, pause, and more.",
    "dlq": "Dead letters, which no sink takes: ls, show, replay, purge.",
    "replay": "Deliver a range of the change log to a sink again.",
    "verify": "Compare the rows of a sink with those of the source.",
    "stream": "The queue of a pgstream sink: ls, pull, ack, replay and more.",
    "schemas": "Versions of tables: ls, show, versions, diff, at.",
    "ddl": "Schema changes: plan, ls, show, approve, reject, apply.",
    "sensing": "Schemas inferred from events: ls, show, json-schema, stats.",
    "drift": "Events that are not what was declared: ls, accept.",
    "recover": "After a lost position: copy tables again, or accept a gap.",
    "source": "What capture made in a database: remove.",
    "adopt": "Make a copied or restored state directory the pipeline's own.",
    "bench": "Measure speed, beside each system's own client.",
}


# These show or measure the product and are no part of running it; they come with their servers and loads.
LAB = {"demo": "tidemill.lab.demo_command", "bench": "tidemill.lab.bench"}
#: That of a program which SIGPIPE ends: 128 and the signal's number.
NOBODY_READS = 141


def module_of(command: str) -> str:
    return LAB.get(command, f"tidemill.cli.{command}")


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
    ctx: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
    ),
    server: str = typer.Option(
        "", "--server", envvar="TIDEMILL_SERVER", help="Address of a server, for `pipelines`.", show_default=False
    ),
    token: str = typer.Option(
        "", "--token", envvar="TIDEMILL_TOKEN", help="Token for it; better given by the variable.", show_default=False
    ),
) -> None:
    """Change data capture on Spark: one YAML file, every change in order, nothing lost."""
    ctx.obj = (server or None, token or None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Always ends in `SystemExit`. An error that has an explanation shows no traceback; with --json it is JSON too. Who
    reads our output may stop reading (`tidemill validate x.yaml | head`): that is no error of ours, and ends us as it
    ends other programs."""
    try:
        try:
            _call(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # here, not while the interpreter ends
    except BrokenPipeError:
        discard_output(sys.stdout.fileno())  # what is still buffered
        raise SystemExit(NOBODY_READS) from None


def _call(given: Sequence[str]) -> None:
    try:
        if "--json" in given:
            raise SystemExit(_call_as_program(given))
        get_command(app).main(args=given, prog_name="tidemill")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the parser and the tables leave with 1
            raise end.__context__ from None
        raise
    except (TidemillError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        problem = error if isinstance(error, TidemillError) else _of_the_system(error)
        terminal.show_error(problem, as_json="--json" in given)
        raise SystemExit(problem.exit_code) from None


def _call_as_program(given: Sequence[str]) -> int:
    """The exit code. A command line that is wrong is an error like any other here, not a page of help."""
    try:
        ended = get_command(app).main(args=given, prog_name="tidemill", standalone_mode=False)
    except typer.Abort:
        return 1
    except typer.TyperException as error:  # of the parser: everything else that commands raise is ours
        context = getattr(error, "ctx", None)
        called = context.command_path if context is not None else "tidemill"
        raise UsageError(error.format_message(), where=called, fix=f"{called} --help lists what it takes.") from error
    return ended if isinstance(ended, int) else 0


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
