"""`tidemill process try`: what a pipeline's processors make of a few events."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.service.trial.process_trial import Trial

app = terminal.commands("Try processors out.")
_CONTEXT = 4  # lines before a change that are shown
_STYLES = {"failed": "bold red", "dropped": "yellow", "changed": "green", "unchanged": "dim", "not_taken": "yellow"}


@app.command("try")
def try_(
    file: target.File,
    processor: Annotated[
        str | None, typer.Option(help="Only this processor, by its id; all of them if not given.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="A file of events, one JSON document a line, as log cat prints them.")
    ] = None,
    from_log: Annotated[int, typer.Option(min=1, help="How many of the newest events of the log.")] = 10,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show events before and after the processors, and what it cost.

    Nothing is written anywhere. Errors of scripts are shown with their messages, which may quote values."""
    from tidemill.service.trial.process_trial import try_processors

    trial = try_processors(target.choose(file, pipeline), processor=processor, sample=events, from_log=from_log)
    if as_json:
        terminal.show_json(asdict(trial))
    else:
        _show(trial)
    if any(event.outcome == "failed" for event in trial.events):
        raise typer.Exit(1)


@app.callback()
def process() -> None:
    """Try processors out."""


def _show(trial: Trial) -> None:
    out = Console()
    for event in trial.events:
        said = "no processor took it" if event.outcome == "not_taken" else event.outcome
        out.print(Text(f"{event.event_id}  {said}", style=_STYLES[event.outcome]))
        if event.reason:
            by = f"{event.processor}: " if event.processor else ""
            out.print(terminal.plain(f"  {by}{event.reason}", "red" if event.processor else "yellow"))
        for number, made in enumerate(event.made, 1) if event.outcome == "changed" else ():
            if len(event.made) > 1:
                out.print(Text(f"  became event {number} of {len(event.made)}", style="dim"))
            out.print(_side_by_side(event.before, made))
    rows = [
        (s.processor, s.type, s.events_in, s.events_out, s.failed, f"{s.seconds * 1000:.1f} ms",
         ", ".join(f"{name} {at['used']:.1f} of {at['limit']:g}" for name, at in s.limits.items()))
        for s in trial.stages
    ]  # fmt: skip
    terminal.show_table(("processor", "type", "in", "out", "failed", "time", "limits used by one call"), rows)


def _side_by_side(before: dict[str, Any], made: dict[str, Any]) -> Table:
    """Changed lines have a sign too: colours do not go through a pipe."""
    left, right = _lines(before), _lines(made)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for _ in range(2):
        table.add_column(ratio=1, overflow="fold")
    a_plain, b_plain = ([line.removesuffix(",") for line in lines] for lines in (left, right))  # a comma is no change
    for kind, a, b, c, d in difflib.SequenceMatcher(a=a_plain, b=b_plain, autojunk=False).get_opcodes():
        if kind == "equal" and b - a > _CONTEXT + 1:  # what did not change is not what one looks for
            hidden = Text(f"  … {b - a - _CONTEXT} lines", style="dim")
            table.add_row(hidden, hidden)
            a, c = b - _CONTEXT, d - _CONTEXT
        for n in range(max(b - a, d - c)):
            old, new = (left[a + n] if a + n < b else ""), (right[c + n] if c + n < d else "")
            if kind == "equal":
                table.add_row(Text(f"  {old}"), Text(f"  {new}"))
            else:
                signed = (f"- {old}" if old else "", "red"), (f"+ {new}" if new else "", "green")
                table.add_row(*(Text(line, style=style) for line, style in signed))
    return table


def _lines(document: dict[str, object]) -> list[str]:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode().splitlines()
