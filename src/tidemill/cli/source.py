"""`tidemill source remove FILE` and `tidemill source trigger FILE`: what capture made in a database."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import target, terminal

app = terminal.commands("What capture made in a database: remove, trigger.")


@app.callback()
def source() -> None:
    """What capture made in a database."""


@app.command()
def remove(
    file: target.File,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Remove triggers and the change table from a SQLite file. The pipeline must be stopped, and loses its position."""
    from tidemill.errors import EnvironmentProblem
    from tidemill.service.maintenance import source_removal as service

    chosen = target.choose(file, pipeline)
    dropped = service.remove(chosen, terminal.confirm(EnvironmentProblem, yes=yes))
    _show_dropped(chosen.name, dropped, "there was nothing, or other pipelines use it", as_json)


@app.command()
def trigger(
    file: target.File,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL that makes them, for a superuser to run.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Drop them, for all sources of the database.")] = False,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print or remove PostgreSQL's event triggers for schema changes.

    No position is lost."""
    from tidemill.errors import ConfigError, EnvironmentProblem
    from tidemill.service.maintenance import source_removal as service

    chosen = target.choose(file, pipeline)
    if sql == remove:
        raise ConfigError("nothing to do is named", where=f"pipeline {chosen.name}", fix="Give --sql or --remove.")
    if sql:
        script = service.trigger_script(chosen)
        terminal.show_json({"pipeline": chosen.name, "sql": script}) if as_json else terminal.say(script.rstrip())
        return
    dropped = service.remove_triggers(chosen, terminal.confirm(EnvironmentProblem, yes=yes))
    _show_dropped(chosen.name, dropped, "there was nothing", as_json)


def _show_dropped(pipeline: str, dropped: list[str], why_nothing: str, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"pipeline": pipeline, "dropped": dropped})
        return
    for name in dropped:
        terminal.say(f"dropped {name}")
    if not dropped:
        terminal.say(f"nothing was dropped: {why_nothing}")
