"""`tidemill drift [ls]|accept`: events that are not what was declared of their table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.config.pipeline import Pipeline

app = terminal.commands("See where events are not what was declared, and accept it.", lists=True)


@app.command()
def ls(
    file: target.File,
    below: Annotated[bool, typer.Option("--below", help="Also those under their threshold.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Show the values of the examples, from the log.")] = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List drift by table and kind.

    With where it was seen first and last. Shows values only with --values: they are read from the log, by offset, and
    are not kept. `ls` may be left out."""
    from tidemill.service.schema.drift_values import example_values
    from tidemill.service.schema.sensing import describe_finding, drifts

    chosen = target.choose(file, pipeline)
    found = drifts(chosen, below=below)
    examples = [example_values(chosen, each) if values else [] for each in found]
    if as_json:
        documents = [
            describe_finding(each) | ({"examples": shown} if values else {})
            for each, shown in zip(found, examples, strict=True)
        ]
        terminal.show_json({"pipeline": chosen.name, "drift": documents})
        return
    terminal.show_table(
        ("table", "kind", "what", "events", "first seen", "last seen", "example positions"),
        [
            (
                each.table, str(each.kind), each.what, each.seen.count,
                each.seen.first.at if each.seen.first else "", each.seen.last.at if each.seen.last else "",
                ", ".join(spot.position for spot in each.seen.examples),
            )
            for each in found
        ],
        empty=_describe_none(chosen, below=below),
    )  # fmt: skip
    if values and found:
        terminal.show_table(
            ("table", "kind", "position", "key", "values"),
            [
                (each.table, str(each.kind), example["position"], _text(example["key"]), _quote_values(example))
                for each, shown in zip(found, examples, strict=True)
                for example in shown
            ],
        )


def _describe_none(pipeline: Pipeline, *, below: bool) -> str:
    if not pipeline.spec.schema_sensing.enabled:
        return f"{pipeline.name} compares no events: its document does not have schema_sensing.enabled."
    return f"{pipeline.name} has no drift" + ("." if below else " above its thresholds; --below shows the rest.")


def _quote_values(example: dict[str, Any]) -> str:
    if not example["in_log"]:
        return "the log does not have it any more"
    return ", ".join(_text(value) for value in example["values"]) or "nothing there"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@app.command()
def accept(
    file: target.File,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="As `ls` shows it.", show_default=False)],
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Take what is observed of a table now as declared. Its drift is forgotten. Safe while the pipeline runs."""
    from tidemill.service.schema.sensing import accept_drift

    chosen = target.choose(file, pipeline)
    terminal.confirm(ConfigError, yes=yes)(f"what events of {table} show now becomes its baseline")
    settled = accept_drift(chosen, table)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "table": table, "accepted": settled})
        return
    terminal.say(f"{settled} accepted")
