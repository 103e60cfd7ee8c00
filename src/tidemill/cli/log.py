"""`tidemill log ls|cat|stats`: look inside the change log. Reads only; safe while the pipeline runs."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.log.entry import Entry

app = terminal.commands("Look inside the change log.")

Target = Annotated[str, typer.Argument(help="A pipeline file, or a log's directory or URI.", show_default=False)]
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
    from tidemill.log.reader import LogReader

    entries = list(islice(LogReader(target.log_of(log, pipeline)[0]).entries(first), limit))
    if as_json:
        terminal.show_json({"appends": [_describe(entry) for entry in entries]})
        return
    terminal.show_table(
        ("offset", "events", "bytes", "written", "through", "barrier", "tables"),
        (
            (
                entry.base,
                entry.rows,
                entry.bytes,
                _time(entry.written_at),
                entry.marks[-1][1] if entry.marks else "",
                ", ".join(entry.barrier.kinds),
                ", ".join(f"{table} {rows}" for table, rows in _tables(entry).items()),
            )
            for entry in entries
        ),
    )


@app.command()
def cat(
    log: Target,
    first: First = 0,
    last: Annotated[int | None, typer.Option("--to", help="Stop before this offset.", show_default=False)] = None,
    table: Annotated[str | None, typer.Option(help="Only this table; * and ? match, as in public.*")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many events to print.")] = 20,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print events, one JSON document a line, in order. --json changes nothing."""
    from tidemill.log.reader import LogReader
    from tidemill.service.event_lines import events

    uri, source = target.log_of(log, pipeline)
    reader = LogReader(uri)

    def wanted(name: str) -> bool:
        return table is None or fnmatchcase(name, table)

    for _, line in islice(events(reader, first, last, wanted, source), limit):
        sys.stdout.write(line + "\n")


@app.command()
def stats(log: Target, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Count what the log holds, by table, and what is not delivered yet."""
    from tidemill.log.reader import LogReader
    from tidemill.log.store import masked_uri
    from tidemill.service.moves import delivered as delivered_mark
    from tidemill.service.positions import sink_positions

    uri, _ = target.log_of(log, pipeline)
    reader = LogReader(uri)
    head, tail = reader.head(), reader.tail()
    rows: Counter[str] = Counter()
    size: Counter[str] = Counter()
    appends = barriers = 0
    oldest = newest = None
    for entry in reader.entries(head):
        appends += 1
        barriers += bool(entry.barrier)
        oldest = entry.written_at if oldest is None else oldest
        newest = entry.written_at
        for block in entry.blocks:
            rows[block.table] += block.rows
            size[block.table] += block.size
    delivered = delivered_mark(uri)
    reached = max(delivered.offset, head) if delivered else head
    summary: dict[str, Any] = {
        "uri": masked_uri(uri),
        "head": head,
        "tail": tail.offset,
        "position": tail.position,
        "delivered": delivered.offset if delivered else None,
        "undelivered_events": max(0, tail.offset - reached),
        "appends": appends,
        "barriers": barriers,
        "bytes": sum(size.values()),
        "oldest": _time(oldest),
        "newest": _time(newest),
    }
    chosen = target.pipeline_of(log, pipeline)
    sinks = sink_positions(chosen) if chosen else []
    undelivered = [
        (at.sink, at.checkpoint.offset if at.checkpoint else head, at.lag(tail.offset, head)) for at in sinks
    ]
    if as_json:
        tables = [{"table": name, "events": count, "bytes": size[name]} for name, count in rows.most_common()]
        lags = [{"sink": sink, "offset": offset, "undelivered_events": lag} for sink, offset, lag in undelivered]
        terminal.show_json({**summary, "tables": tables, "sinks": lags})
        return
    terminal.show_table(("", ""), [(key.replace("_", " "), _plain(value)) for key, value in summary.items()])
    terminal.say("")
    terminal.show_table(("table", "events", "bytes"), [(n, count, size[n]) for n, count in rows.most_common()])
    if undelivered:
        terminal.say("")
        terminal.show_table(("sink", "offset", "undelivered events"), undelivered)


def _describe(entry: Entry) -> dict[str, Any]:
    return {
        "offset": entry.base,
        "events": entry.rows,
        "bytes": entry.bytes,
        "written_at": _time(entry.written_at),
        "barrier": bool(entry.barrier),
        "barriers": entry.barrier.kinds,
        "transactions": len(entry.marks),
        "through": entry.marks[-1][1] if entry.marks else None,
        "tables": dict(_tables(entry)),
        "segments": sorted({block.segment for block in entry.blocks}),
    }


def _tables(entry: Entry) -> Counter[str]:
    rows: Counter[str] = Counter()
    for block in entry.blocks:
        rows[block.table] += block.rows
    return rows


def _time(epoch_ms: int | None) -> str:
    if epoch_ms is None:
        return ""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
