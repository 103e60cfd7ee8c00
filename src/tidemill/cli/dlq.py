"""`tidemill dlq ls|show|replay|purge`: events that a sink will never take, and what an operator does about them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal
from tidemill.errors import DeliveryError

if TYPE_CHECKING:
    from tidemill.service.redelivery.dead_letters import DeadLetterRecord

app = terminal.commands("See dead letters, deliver them again, or let them go.")

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Which; all of them if none is named.")]
OfSink = Annotated[str | None, typer.Option("--sink", help="Only dead letters of this sink.", show_default=False)]


@app.command()
def ls(
    file: target.File,
    sink: OfSink = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, by offset.")] = 100,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List dead letters, oldest event first. Safe while the pipeline runs."""
    from tidemill.service.redelivery.dead_letters import list_records

    chosen = target.choose(file, pipeline)
    listing = list_records(chosen, sink, limit)
    dead_letters, counts = listing.records, listing.counts
    if as_json:
        terminal.show_json(
            {"pipeline": chosen.name, "count": counts, "dead_letters": [_head(each) for each in dead_letters]}
        )
        return
    terminal.show_table(
        ("id", "sink", "offset", "table", "op", "attempts", "since", "superseded", "reason"),
        [
            (
                each.number,
                each.sink,
                each.offset,
                each.table,
                each.op,
                each.attempts,
                each.first_at,
                _newer(each),
                each.reason,
            )
            for each in dead_letters
        ],
        empty=f"{chosen.name} has no dead letters{f' of sink {sink}' if sink else ''}.",
    )
    total = counts.get(sink, 0) if sink else sum(counts.values())
    if total > len(dead_letters):
        terminal.say(f"{len(dead_letters)} of {total}: --limit shows more")


@app.command()
def show(
    file: target.File,
    number: Annotated[int, typer.Argument(metavar="ID", help="As `ls` shows it.", show_default=False)],
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show one dead letter with its event, always as JSON. The event's values are in it."""
    import orjson

    from tidemill.service.redelivery.dead_letters import read_record

    dead_letter, event = read_record(target.choose(file, pipeline), number)
    terminal.show_json({**_head(dead_letter), "event": orjson.loads(event)})


@app.command()
def replay(
    file: target.File,
    ids: Ids = None,
    sink: OfSink = None,
    superseded: Annotated[
        bool,
        typer.Option("--superseded", help="Also those whose rows have newer events at the sink: the rows go back."),
    ] = False,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write dead letters to their sink again, by offset. Those that arrive are removed. The pipeline must be stopped.

    A sink that holds rows is not sent dead letters that are superseded: newer events of their rows are there.
    """
    from tidemill.service.redelivery import dead_letters as service

    chosen = target.choose(file, pipeline)
    intended = service.plan_replay(chosen, ids or (), sink, superseded=superseded)
    terminal.confirm(DeliveryError, yes=yes)(intended.consequence)
    outcomes = service.replay(chosen, intended)
    failed = [outcome for outcome in outcomes if outcome.error]
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    replayed, untried = len(outcomes) - len(failed) - len(skipped), len(intended.records) - len(outcomes)
    if as_json:
        terminal.show_json(
            {
                "pipeline": chosen.name, "replayed": replayed, "failed": len(failed), "skipped": len(skipped),
                "untried": untried,
                "dead_letters": [
                    {"id": o.dead_letter.number, "sink": o.dead_letter.sink, "error": o.error, "skipped": o.skipped}
                    for o in outcomes
                ],
            }
        )  # fmt: skip
    else:
        for o in [*failed, *skipped]:
            terminal.warn(
                f"{o.dead_letter.number} ({o.dead_letter.sink}, {o.dead_letter.table}): "
                f"{o.error or f'not sent, {o.skipped}'}"
            )
        rest = f", {len(skipped)} skipped" if skipped else ""
        rest += f", {untried} not tried because the sink is away" if untried else ""
        terminal.say(f"{replayed} delivered, {len(failed)} failed{rest}")
        if skipped:
            these = " ".join([str(file), *(f"--pipeline {name}" for name in [pipeline] if name)])
            these += "".join(f" {outcome.dead_letter.number}" for outcome in skipped)
            terminal.say("What was skipped would put rows at the sink back to an older state.")
            terminal.say(f"To let it go: tidemill dlq purge {these}")
            terminal.say(f"To put the rows back all the same: tidemill dlq replay {these} --superseded")
    if failed:
        raise typer.Exit(1)


@app.command()
def purge(
    file: target.File,
    ids: Ids = None,
    sink: OfSink = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Only those that newer events at the sink replaced wholly.")
    ] = False,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Remove dead letters for ever: their sink never gets these events. Safe while the pipeline runs."""
    from tidemill.service.redelivery import dead_letters as service

    chosen = target.choose(file, pipeline)
    intended = service.plan_purge(chosen, ids or (), sink, superseded=superseded)
    terminal.confirm(DeliveryError, yes=yes)(intended.consequence)
    removed = service.purge(chosen, intended)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "purged": removed})
        return
    terminal.say(f"{removed} removed")


def _newer(dead_letter: DeadLetterRecord) -> str:
    return f"{dead_letter.superseded} by {dead_letter.superseded_by}" if dead_letter.superseded else ""


def _head(dead_letter: DeadLetterRecord) -> dict[str, Any]:
    fields = asdict(dead_letter)
    fields.pop("payload")
    return {"id": fields.pop("number"), **fields}
