"""`tidemill log ls|cat|tail|stats`: look inside the change log. Reads only; safe while the pipeline runs."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from typing import Annotated

import typer

from tidemill.cli import target, terminal

app = terminal.commands("Look inside the change log.")

Target = Annotated[
    str,
    typer.Argument(
        help="A pipeline file, or a log's directory or URI.", show_default=False, callback=target.check_place
    ),
]
_FOLLOWED, _LOOK_SECONDS = 1000, 0.5
First = Annotated[int, typer.Option("--from", min=0, help="First offset to show.")]


@app.command()
def ls(
    log: Target,
    first: First = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many appends to show.")] = 50,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List appends: one or more whole source transactions each, in order."""
    from tidemill.service.change_log.view import list_appends

    appends = list_appends(target.log_of(log, pipeline)[0], first, limit)
    if as_json:
        terminal.show_json({"appends": [{**asdict(each), "written_at": _time(each.written_at)} for each in appends]})
        return
    terminal.show_table(
        ("offset", "events", "bytes", "written", "through", "barrier", "tables"),
        (
            (
                each.offset,
                each.events,
                each.bytes,
                _time(each.written_at),
                each.through or "",
                ", ".join(each.barriers),
                ", ".join(f"{table} {rows}" for table, rows in each.tables.items()),
            )
            for each in appends
        ),
        empty="The log has no appends" + (f" from offset {first:,} on." if first else " yet."),
    )


OnlyTable = Annotated[str | None, typer.Option("--table", help="Only this table; * and ? match, as in public.*")]
OnlyOp = Annotated[
    str | None, typer.Option("--op", help="Only insert, update, delete, read, truncate, ddl or message.")
]


@app.command()
def cat(
    log: Target,
    first: First = 0,
    last: Annotated[int | None, typer.Option("--to", help="Stop before this offset.", show_default=False)] = None,
    table: OnlyTable = None,
    op: OnlyOp = None,
    limit: Annotated[int, typer.Option(min=1, help="How many events to print.")] = 20,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print events, one JSON document a line, in order. --json changes nothing."""
    from tidemill.service.change_log.captured_events import EventFilter, print_events

    for line in print_events(*target.log_of(log, pipeline), first, last, EventFilter(table, op), limit):
        sys.stdout.write(line + "\n")


@app.command()
def tail(
    log: Target,
    table: OnlyTable = None,
    op: OnlyOp = None,
    since: Annotated[
        str | None, typer.Option(help="Only what was captured since then: 2026-01-31T12:00:00Z.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many events to print at first.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that come.")] = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print the last events, one JSON document a line, in order. --json changes nothing."""
    from tidemill.service.change_log.captured_events import EventFilter, EventTail, events_since, recent_events

    (uri, source), wanted = target.log_of(log, pipeline), EventFilter(table, op)
    begin = events_since(uri, since, "--since") if since else 0
    coming = EventTail(uri, source, wanted)
    for offset, line in recent_events(uri, source, wanted, limit):
        if begin <= offset:
            sys.stdout.write(line + "\n")
            coming.offset = max(coming.offset, offset + 1)
    while follow:
        new = coming.read(_FOLLOWED)
        if new.lost:
            terminal.progress(f"{new.lost:,} events were delivered and trimmed before they could be shown.")
        for _, line in new.lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if not new.lines:
            time.sleep(_LOOK_SECONDS)


@app.command()
def stats(log: Target, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Count what the log holds, by table, and what is not delivered yet."""
    from tidemill.service.change_log.view import count

    found = count(target.log_of(log, pipeline)[0], target.pipeline_of(log, pipeline))
    summary: dict[str, object] = {
        "uri": found.uri,
        "head": found.head,
        "tail": found.tail,
        "position": found.position,
        "delivered": found.delivered,
        "undelivered_events": found.undelivered_events,
        "appends": found.appends,
        "barriers": found.barriers,
        "bytes": found.bytes,
        "oldest": _time(found.oldest),
        "newest": _time(found.newest),
    }
    if as_json:
        tables, sinks = map(asdict, found.tables), map(asdict, found.sinks)
        terminal.show_json({**summary, "tables": [*tables], "sinks": [*sinks]})
        return
    terminal.show_table(("", ""), [(key.replace("_", " "), _plain(value)) for key, value in summary.items()])
    terminal.say("")
    terminal.show_table(("table", "events", "bytes"), map(astuple, found.tables), empty="It holds no events.")
    if found.sinks:
        terminal.say("")
        terminal.show_table(("sink", "offset", "undelivered events"), map(astuple, found.sinks))


def _time(epoch_ms: int | None) -> str:
    if epoch_ms is None:
        return ""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
