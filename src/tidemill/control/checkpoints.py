"""`tidemill checkpoints show|history|set`: how far a pipeline has come, and the operator's hand on it."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.control import console, target

if TYPE_CHECKING:
    from tidemill.model.delivery import Checkpoint

app = typer.Typer(no_args_is_help=True)

_COLUMNS = ("pipeline", "offset", "position", "version", "saved", "note")


@app.callback()
def checkpoints() -> None:
    """See or move how far a pipeline has come."""


@app.command()
def show(
    file: target.File,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Show the newest checkpoint of each pipeline of the file, or of one."""
    from tidemill import config

    pipelines = [target.choose(file, pipeline)] if pipeline else config.load(file)
    found: list[tuple[str, Checkpoint | None]] = []
    for each in pipelines:
        with closing(each.build_checkpoints()) as store:
            found.append((each.name, store.load(each.name)))
    if as_json:
        console.show_json(
            {"checkpoints": [{"pipeline": name, "checkpoint": asdict(c) if c else None} for name, c in found]}
        )
        return
    console.show_table(_COLUMNS, [_row(name, checkpoint) for name, checkpoint in found])


@app.command()
def history(
    file: target.File,
    pipeline: target.Which = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: console.AsJson = False,
) -> None:
    """Show past checkpoints; the `file` store keeps only the newest, `sqlite` keeps the last ones."""
    chosen = target.choose(file, pipeline)
    with closing(chosen.build_checkpoints()) as store:
        past = store.history(chosen.name, limit)
    if as_json:
        console.show_json({"pipeline": chosen.name, "checkpoints": [asdict(c) for c in past]})
        return
    console.show_table(_COLUMNS, [_row(chosen.name, checkpoint) for checkpoint in past])


@app.command("set")
def set_(
    file: target.File,
    offset: Annotated[
        int | None, typer.Argument(help="Offset to go on from; see `tidemill log ls`.", min=0, show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Instead of an offset: go on from what was captured at this time (ISO 8601).")
    ] = None,
    position: Annotated[
        str | None, typer.Option(help="The source's position, for a log that is empty.", show_default=False)
    ] = None,
    note: Annotated[str, typer.Option(help="Why; kept with the checkpoint.")] = "set by hand",
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Move the checkpoint of a stopped pipeline, to deliver events again or to step over some."""
    from tidemill.control.move import move, plan

    chosen = target.choose(file, pipeline)
    intended = plan(chosen, offset=offset, since=since, position=position)
    if not force:
        _ask(intended.consequence)
    stored = move(chosen, intended, note=note)
    if as_json:
        console.show_json(
            {"pipeline": chosen.name, "checkpoint": asdict(stored), "replayed": intended.replayed,
             "skipped": intended.skipped}
        )  # fmt: skip
        return
    console.show_table(_COLUMNS, [_row(chosen.name, stored)])
    console.say(intended.consequence)


def _ask(consequence: str) -> None:
    from tidemill.errors import CheckpointError

    if not sys.stdin.isatty():
        raise CheckpointError(consequence, fix="Nothing was changed. If that is meant, add --force.")
    console.warn(consequence)
    if not typer.confirm("Go on?"):
        raise typer.Exit(1)


def _row(name: str, checkpoint: Checkpoint | None) -> tuple[object, ...]:
    if checkpoint is None:
        return (name, "none", "", "", "", "")
    return (
        name, checkpoint.offset, checkpoint.position, checkpoint.version, checkpoint.saved_at, checkpoint.note,
    )  # fmt: skip
