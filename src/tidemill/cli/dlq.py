"""`tidemill dlq ls|show|replay|purge`: events that a sink will never take, and what an operator does about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal
from tidemill.errors import ConfigError, DeliveryError

if TYPE_CHECKING:
    from tidemill.config import Pipeline
    from tidemill.dlq import DeadLetterRecord, DeadLetters

app = terminal.commands("See dead letters, deliver them again, or let them go.")

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Which; all of them if none is named.")]
OfSink = Annotated[str | None, typer.Option("--sink", help="Only letters of this sink.", show_default=False)]


@app.command()
def ls(
    file: target.File,
    sink: OfSink = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, by offset.")] = 100,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List dead letters, oldest event first. Safe while the pipeline runs."""
    with _opened(file, pipeline) as (chosen, store):
        dead_letters, counts = store.dead_letters(sink=sink, limit=limit), store.count()
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
    """Show one dead letter with its event, as JSON; --json changes nothing. The event's values are in it."""
    import orjson

    from tidemill.formats.json import JsonFormat
    from tidemill.service.redelivery import block_of

    with _opened(file, pipeline) as (_, store):
        dead_letter = store.dead_letter(number)
    if dead_letter is None:
        raise _unknown([number])
    (event,) = JsonFormat(envelope="native").encode(block_of(dead_letter), dead_letter.source).to_pylist()
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
    from tidemill.service.redelivery import holds_rows, overtaken, redeliver

    with _opened(file, pipeline) as (chosen, store):
        dead_letters = _chosen(store, ids, sink)
        rows = {name: holds_rows(chosen, name) for name in {dead_letter.sink for dead_letter in dead_letters}}
        late = [
            dead_letter for dead_letter in overtaken(chosen, dead_letters) if superseded or not rows[dead_letter.sink]
        ]
        if late and not yes:
            terminal.ask(
                f"{len(late)} of {len(dead_letters)} dead letters are older than what their sink has: "
                "each arrives after later events of its key"
                + (". Rows may go back to an older state" if superseded else ""),
                DeliveryError,
            )
        outcomes = list(redeliver(chosen, store, dead_letters, superseded=superseded))
    failed = [outcome for outcome in outcomes if outcome.error]
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    replayed, untried = len(outcomes) - len(failed) - len(skipped), len(dead_letters) - len(outcomes)
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
    with _opened(file, pipeline) as (chosen, store):
        dead_letters = [each for each in _chosen(store, ids, sink) if each.superseded == "wholly" or not superseded]
        if dead_letters and not yes:
            terminal.ask(_consequence(dead_letters, chosen.name), DeliveryError)
        removed = store.remove([dead_letter.number for dead_letter in dead_letters])
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "purged": removed})
        return
    terminal.say(f"{removed} removed")


@contextmanager
def _opened(file: Any, name: str | None) -> Iterator[tuple[Pipeline, DeadLetters]]:
    """Also when dead letters were switched off since: what is there can be read, replayed and purged."""
    from tidemill.dlq import DeadLetters

    chosen = target.choose(file, name)
    if not chosen.dlq_path.exists() and not chosen.spec.dlq.enabled:
        raise ConfigError(
            "this pipeline keeps no dead letters", where=str(file), fix="Add `dlq: {}` to its spec to have them."
        )
    store = DeadLetters(chosen.dlq_path, chosen.spec.dlq)
    try:
        yield chosen, store
    finally:
        store.close()


def _chosen(store: DeadLetters, ids: list[int] | None, sink: str | None) -> list[DeadLetterRecord]:
    dead_letters = store.dead_letters(sink=sink, numbers=ids or ())
    unknown = set(ids or ()) - {dead_letter.number for dead_letter in dead_letters}
    if unknown:
        raise _unknown(sorted(unknown))
    return dead_letters


def _unknown(numbers: list[int]) -> ConfigError:
    listed = ", ".join(map(str, numbers))
    return ConfigError(f"there is no such dead letter: {listed}", fix="tidemill dlq ls shows those that are there.")


def _consequence(dead_letters: list[DeadLetterRecord], pipeline: str) -> str:
    """How many, of which sinks, and for how many of them nothing newer is known to be there."""
    by_sink = Counter(dead_letter.sink for dead_letter in dead_letters)
    sinks = ", ".join(f"{count} to {sink}" for sink, count in sorted(by_sink.items()))
    lacking = sum(dead_letter.superseded != "wholly" for dead_letter in dead_letters)
    what = f"{len(dead_letters)} events of {pipeline} are never delivered ({sinks})"
    return f"{what}; {lacking} of them are not superseded by newer ones" if lacking else what


def _newer(dead_letter: DeadLetterRecord) -> str:
    return f"{dead_letter.superseded} by {dead_letter.superseded_by}" if dead_letter.superseded else ""


def _head(dead_letter: DeadLetterRecord) -> dict[str, Any]:
    fields = asdict(dead_letter)
    fields.pop("payload")
    return {"id": fields.pop("number"), **fields}
