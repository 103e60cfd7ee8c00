"""`tidemill resync FILE`: goes on from now when the source no longer has what comes next (slot lost, server restored).

The gap is the operator's decision, never the program's (invariant 7): it says between which positions changes are
gone, and asks. What the log still holds is delivered as ever; only capture begins anew, at a new slot.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.control import console, target

if TYPE_CHECKING:
    from tidemill.config import Pipeline

app = console.commands()

Table = Annotated[
    str | None, typer.Option("--table", help="Accept what is said of this table: schema.name or a pattern.")
]


@app.command()
def resync(
    context: typer.Context,
    file: target.File,
    table: Table = None,
    yes: console.Yes = False,
    pipeline: target.Which = None,
    as_json: console.AsJson = False,
) -> None:
    """Accept that changes are gone at the source, and capture from now on. The pipeline must be stopped.

    With --table, accept only what is said of one table (table-incomplete, table-dropped): the position stays.
    """
    from tidemill.capture.status import forget_told
    from tidemill.control.ownership import lock_pipeline
    from tidemill.control.positions import sink_positions
    from tidemill.errors import SourceError
    from tidemill.log.reader import LogReader
    from tidemill.log.writer import LogWriter
    from tidemill.model.change import Committed
    from tidemill.schema.registry import SchemaRegistry

    chosen = target.choose(file, pipeline)
    context.with_resource(lock_pipeline(chosen))  # until the command ends
    if table is not None:
        _accept(chosen, table, yes=yes, as_json=as_json)
        return
    log = LogWriter.open(chosen.log_uri, chosen.spec.log)
    try:
        before = log.tail
        gap = f"changes of {chosen.name} after {before.position or 'the beginning'} and before now are never captured"
        if not yes:
            console.ask(gap, SourceError)
        source = chosen.build_source()
        schemas = SchemaRegistry(chosen.state_path / "registry.sqlite")
        try:
            now = source.renew(schemas)
        finally:
            source.close()
            schemas.close()
        # An append without events: the log's next event is what commits after this position.
        log.append(Committed((), 0, ((0, now),)))
        forget_told(chosen.state_path)
        # How tables were before the gap says nothing about them after it: the source looks at them anew.
        schemas = SchemaRegistry(chosen.state_path / "registry.sqlite")
        schemas.forget_structures(0)
        schemas.close()
    finally:
        log.close()
    reader = LogReader(chosen.log_uri)
    waiting = {at.sink: at.behind(before.offset, reader.head()) for at in sink_positions(chosen)}
    if as_json:
        console.show_json(
            {"pipeline": chosen.name, "offset": before.offset, "from": before.position, "to": now, "waiting": waiting}
        )
        return
    console.say(f"{chosen.name} captures from {now} on. Changes between {before.position} and {now} are gone:")
    console.say("copy the tables to the destinations yourself before you start the pipeline again.")
    for sink, count in waiting.items():
        if count:
            console.say(f"{count:,} events from before the gap are still delivered to {sink} first.")


def _accept(chosen: Pipeline, table: str, *, yes: bool, as_json: bool) -> None:
    """The source forgets what it says of `table`; nothing else changes. What somebody copied is their affair."""
    from tidemill.errors import SourceError
    from tidemill.schema.registry import SchemaRegistry

    schemas = SchemaRegistry(chosen.state_path / "registry.sqlite", create=False)
    try:
        if not yes:
            console.ask(f"{chosen.name} forgets that rows of {table} may be missing or left over", SourceError)
        source = chosen.build_source()
        cleared = source.accept(table, schemas)
        source.close()
    finally:
        schemas.close()
    if as_json:
        console.show_json({"pipeline": chosen.name, "accepted": [asdict(notice) for notice in cleared]})
        return
    for notice in cleared:
        console.say(f"accepted: {notice.code} {notice.subject}: {notice.what}")
    if not cleared:
        console.say(f"nothing is said of {table}; names are written as in the status, schema.name")
