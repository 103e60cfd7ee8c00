"""`tidemill dlq ls|show|replay|purge`: events that a sink will never take, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.control import console, target
from tidemill.errors import ConfigError, DeliveryError

if TYPE_CHECKING:
    from tidemill.config import Pipeline
    from tidemill.dlq import DeadLetters, Letter

app = console.commands("See dead letters, deliver them again, or let them go.")

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Which; all of them if none is named.")]
OfSink = Annotated[str | None, typer.Option("--sink", help="Only letters of this sink.", show_default=False)]


@app.command()
def ls(
    file: target.File,
    sink: OfSink = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, by offset.")] = 100,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """List dead letters, oldest event first. Safe while the pipeline runs."""
    with _opened(file, pipeline) as (chosen, store):
        letters, counts = store.letters(sink=sink, limit=limit), store.count()
    if as_json:
        console.show_json({"pipeline": chosen.name, "count": counts, "letters": [_head(each) for each in letters]})
        return
    console.show_table(
        ("id", "sink", "offset", "table", "op", "attempts", "since", "reason"),
        [
            (each.number, each.sink, each.offset, each.table, each.op, each.attempts, each.first_at, each.reason)
            for each in letters
        ],
    )
    total = counts.get(sink, 0) if sink else sum(counts.values())
    if total > len(letters):
        console.say(f"{len(letters)} of {total}: --limit shows more")


@app.command()
def show(
    file: target.File,
    number: Annotated[int, typer.Argument(metavar="ID", help="As `ls` shows it.", show_default=False)],
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Show one letter with its event, as JSON; --json changes nothing. The event's values are in it."""
    import orjson

    from tidemill.control.redeliver import block_of
    from tidemill.formats.json import JsonFormat

    with _opened(file, pipeline) as (_, store):
        letter = store.letter(number)
    if letter is None:
        raise _unknown([number])
    (event,) = JsonFormat(envelope="native").encode(block_of(letter), letter.source).to_pylist()
    console.show_json({**_head(letter), "event": orjson.loads(event)})


@app.command()
def replay(
    file: target.File,
    ids: Ids = None,
    sink: OfSink = None,
    yes: console.Yes = False,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Write letters to their sink again, by offset. Those that arrive are removed. The pipeline must be stopped."""
    from tidemill.control.redeliver import overtaken, redeliver

    with _opened(file, pipeline) as (chosen, store):
        letters = _chosen(store, ids, sink)
        late = overtaken(chosen, letters)
        if late and not yes:
            console.ask(
                f"{len(late)} of {len(letters)} letters are older than what their sink has: each arrives behind later "
                "events of its key. A sink that keeps versions keeps the newer row; any other goes back to the older",
                DeliveryError,
            )
        outcomes = list(redeliver(chosen, store, letters))
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        console.show_json(
            {
                "pipeline": chosen.name, "replayed": len(outcomes) - len(failed), "failed": len(failed),
                "untried": len(letters) - len(outcomes),
                "letters": [{"id": o.letter.number, "sink": o.letter.sink, "error": o.error} for o in outcomes],
            }
        )  # fmt: skip
    else:
        for outcome in failed:
            console.warn(f"{outcome.letter.number} ({outcome.letter.sink}, {outcome.letter.table}): {outcome.error}")
        untried = len(letters) - len(outcomes)
        rest = f", {untried} not tried because the sink is away" if untried else ""
        console.say(f"{len(outcomes) - len(failed)} delivered, {len(failed)} failed{rest}")
    if failed:
        raise typer.Exit(1)


@app.command()
def purge(
    file: target.File,
    ids: Ids = None,
    sink: OfSink = None,
    yes: console.Yes = False,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Remove letters for ever: their sink never gets these events. Safe while the pipeline runs."""
    with _opened(file, pipeline) as (chosen, store):
        letters = _chosen(store, ids, sink)
        if letters and not yes:
            consequence = f"{len(letters)} events of {chosen.name} are never delivered to the sinks that refused them"
            console.ask(consequence, DeliveryError)
        removed = store.remove([letter.number for letter in letters])
    if as_json:
        console.show_json({"pipeline": chosen.name, "purged": removed})
        return
    console.say(f"{removed} removed")


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


def _chosen(store: DeadLetters, ids: list[int] | None, sink: str | None) -> list[Letter]:
    letters = store.letters(sink=sink, numbers=ids or ())
    unknown = set(ids or ()) - {letter.number for letter in letters}
    if unknown:
        raise _unknown(sorted(unknown))
    return letters


def _unknown(numbers: list[int]) -> ConfigError:
    listed = ", ".join(map(str, numbers))
    return ConfigError(f"there is no such letter: {listed}", fix="tidemill dlq ls shows those that are there.")


def _head(letter: Letter) -> dict[str, Any]:
    fields = asdict(letter)
    fields.pop("payload")
    return {"id": fields.pop("number"), **fields}
