"""`tidemill checkpoints show|history|set`: how far a pipeline has come, and the operator's hand on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.model.delivery import Checkpoint

app = terminal.commands("See or move how far a pipeline has come.")

_COLUMNS = ("pipeline", "sink", "offset", "position", "version", "saved", "note")

OfSink = Annotated[
    str | None, typer.Option("--sink", help="The position of one sink instead of the pipeline's.", show_default=False)
]


@app.command()
def show(
    file: target.File,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show how far pipelines are, and sinks with their own position."""
    from tidemill import config
    from tidemill.service.position.positions import checkpoint_of, sink_positions

    pipelines = [target.choose(file, pipeline)] if pipeline else config.load(file)
    answer: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for each in pipelines:
        whole, sinks = checkpoint_of(each), sink_positions(each)
        answer.append({"pipeline": each.name, "checkpoint": _data(whole), "sinks": [
            {"sink": at.sink, "own": at.own, "checkpoint": _data(at.checkpoint)} for at in sinks
        ]})  # fmt: skip
        rows += [_row(each.name, whole), *(_row(each.name, at.checkpoint, at.sink) for at in sinks if at.own)]
    if as_json:
        terminal.show_json({"checkpoints": answer})
        return
    terminal.show_table(_COLUMNS, rows)


@app.command()
def history(
    file: target.File,
    pipeline: target.Which = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    sink: OfSink = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show past checkpoints. `sqlite` and `clickhouse` keep some, `file` only the newest."""
    from tidemill.service.position.positions import past_checkpoints

    chosen = target.choose(file, pipeline)
    past = past_checkpoints(chosen, limit, sink)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "sink": sink, "checkpoints": [asdict(c) for c in past]})
        return
    terminal.show_table(
        _COLUMNS,
        [_row(chosen.name, checkpoint, sink) for checkpoint in past],
        empty=f"{sink or chosen.name} has no checkpoint yet: the first is saved after its first batch.",
    )


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
    yes: terminal.Yes = False,
    sink: OfSink = None,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Move a stopped pipeline, to deliver again or to step over events."""
    from tidemill.errors import CheckpointError
    from tidemill.service.maintenance.moves import move, plan

    chosen = target.choose(file, pipeline)
    intended = plan(chosen, offset=offset, since=since, position=position, sink=sink)
    terminal.confirm(CheckpointError, yes=yes)(intended.consequence)
    stored = move(chosen, intended, note=note)
    if as_json:
        terminal.show_json(
            {"pipeline": chosen.name, "sink": sink, "checkpoint": asdict(stored), "replayed": intended.replayed,
             "skipped": intended.skipped}
        )  # fmt: skip
        return
    terminal.show_table(_COLUMNS, [_row(chosen.name, stored, sink)])
    terminal.say(intended.consequence)


def _data(checkpoint: Checkpoint | None) -> dict[str, object] | None:
    return asdict(checkpoint) if checkpoint else None


def _row(name: str, checkpoint: Checkpoint | None, sink: str | None = None) -> tuple[object, ...]:
    if checkpoint is None:
        return (name, sink or "", "none", "", "", "", "")
    return (
        name, sink or "", checkpoint.offset, checkpoint.position, checkpoint.version, checkpoint.saved_at,
        checkpoint.note,
    )  # fmt: skip
