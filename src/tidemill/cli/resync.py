"""`tidemill resync FILE`: goes on when the source no longer has what comes next (slot lost, server restored), or when
capture cannot get past one transaction (`--skip-transaction`, `--after`).

The gap is the operator's decision, never the program's (invariant 7): it says what is lost, and asks. What the log
still holds is delivered as ever; only capture begins anew, from now on at a new slot, or after what was left out.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.config import Pipeline
    from tidemill.log.entry import Tail
    from tidemill.model.position import Position

app = terminal.commands()

Table = Annotated[
    str | None, typer.Option("--table", help="Accept what is said of this table: schema.name or a pattern.")
]
After = Annotated[
    str | None,
    typer.Option(
        "--after",
        help="Leave out what was committed up to this position (an LSN; GTIDs; file:byte), capture all after it.",
        show_default=False,
    ),
]
Skip = Annotated[
    bool, typer.Option("--skip-transaction", help="Leave out the one transaction at which capture stopped.")
]


@app.command()
def resync(
    context: typer.Context,
    file: target.File,
    table: Table = None,
    after: After = None,
    skip_transaction: Skip = False,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Accept that changes are lost, and capture from now on. The pipeline must be stopped.

    With --skip-transaction only the transaction at which capture stopped is lost, with --after what was committed up to
    a position: everything after it is captured. With --table, accept only what is said of one table
    (table-incomplete, table-dropped): the position stays.
    """
    from tidemill.errors import ConfigError
    from tidemill.log.reader import LogReader
    from tidemill.log.writer import LogWriter
    from tidemill.model.change import Committed
    from tidemill.model.position import Position
    from tidemill.service.ownership import lock_pipeline
    from tidemill.service.positions import sink_positions, used_offset

    chosen = target.choose(file, pipeline)
    if sum((table is not None, after is not None, skip_transaction)) > 1:
        raise ConfigError(
            "--table, --after and --skip-transaction are three different things", where=chosen.file, fix="Choose one."
        )
    context.with_resource(lock_pipeline(chosen))  # until the command ends
    if table is not None:
        _accept(chosen, table, yes=yes, as_json=as_json)
        return
    log = LogWriter.open(chosen.log_uri, chosen.spec.log, base=used_offset(chosen), ours=chosen.owns_log)
    try:
        before = log.tail
        if after is None and not skip_transaction:
            lost, now = _from_now(chosen, before, yes=yes)
        else:
            lost, now = _pass_over(chosen, before, Position(after) if after else None, yes=yes)
        # An append without events: the log's next event is what commits after this position.
        log.append(Committed((), 0, ((0, now),)))
    finally:
        log.close()
    reader = LogReader(chosen.log_uri)
    waiting = {at.sink: at.lag(before.offset, reader.head()) for at in sink_positions(chosen)}
    if as_json:
        terminal.show_json(
            {"pipeline": chosen.name, "offset": before.offset, "from": before.position, "to": now, "lost": lost,
             "waiting": waiting}
        )  # fmt: skip
        return
    terminal.say(f"{chosen.name} captures what is committed after {now}. Lost: {lost}.")
    terminal.say("Copy the tables to the destinations yourself before you start the pipeline again.")
    for sink, count in waiting.items():
        if count:
            terminal.say(f"{count:,} events from before the gap are still delivered to {sink} first.")


def _from_now(chosen: Pipeline, before: Tail, *, yes: bool) -> tuple[str, Position]:
    from tidemill.capture.confirmed import forget_confirmed
    from tidemill.errors import SourceError
    from tidemill.schema.registry import SchemaRegistry

    gap = f"changes of {chosen.name} after {before.position or 'the beginning'} and before now are never captured"
    with closing(SchemaRegistry(chosen.state_path / "registry.sqlite")) as schemas:
        with closing(chosen.build_source()) as source:
            other = source.other_server(before.position, schemas) if before.position else ""
            if not yes:
                terminal.ask(f"{other}; if it is the right one: {gap}" if other else gap, SourceError)
            now = source.renew(schemas)
        with closing(chosen.build_state()) as state:
            forget_confirmed(state, chosen.name, chosen.state_path)
    if other:
        return f"changes of the server before after {before.position}, and of this one before {now} ({other})", now
    return f"changes between {before.position or 'the beginning'} and {now}", now


def _pass_over(chosen: Pipeline, before: Tail, through: Position | None, *, yes: bool) -> tuple[str, Position]:
    """What the source remembers of tables, and was told, stays true."""
    from tidemill.capture import stopped
    from tidemill.capture.confirmed import read_confirmed
    from tidemill.errors import ConfigError, PositionLost, SourceError
    from tidemill.schema.registry import SchemaRegistry

    if not before.position:
        raise ConfigError(
            "nothing was captured yet, so there is nothing to go on after", where=chosen.file,
            fix="start_position of the source says where it begins.",
        )  # fmt: skip
    with closing(SchemaRegistry(chosen.state_path / "registry.sqlite")) as schemas:
        if through is None and stopped.recall(schemas, before.position) is None:
            raise ConfigError(
                "capture did not stop at a transaction: what comes next may well be captured", where=chosen.file,
                fix="Nothing was changed. Start the pipeline: where it cannot get past a transaction, it says so. To"
                " leave out what was committed up to a position, use --after POSITION.",
            )  # fmt: skip
        with closing(chosen.build_source()) as source:
            if other := source.other_server(before.position, schemas):
                raise PositionLost(
                    other, where=chosen.file,
                    fix="Check the dsn: our position, and any that you name, means nothing here. Nothing was changed.",
                )  # fmt: skip
            with closing(chosen.build_state()) as state:
                confirmed = read_confirmed(state, chosen.name, chosen.state_path, before.offset)
            passage = source.pass_over(before.position, through, schemas, confirmed=confirmed)
        if not yes:
            terminal.ask(f"{passage.what} is never captured; everything after it is", SourceError)
    return passage.what, passage.to


def _accept(chosen: Pipeline, table: str, *, yes: bool, as_json: bool) -> None:
    """The source forgets what it says of `table`; nothing else changes. What somebody copied is their affair."""
    from tidemill.errors import ConfigError, SourceError
    from tidemill.schema.registry import SchemaRegistry

    with closing(SchemaRegistry(chosen.state_path / "registry.sqlite", create=False)) as schemas:
        if not yes:
            terminal.ask(f"{chosen.name} forgets that rows of {table} may be missing or left over", SourceError)
        with closing(chosen.build_source()) as source:
            cleared = source.accept(table, schemas)
    if not cleared:
        raise ConfigError(
            f"nothing is said of {table}, so there is nothing to accept", where=chosen.file,
            fix=f"Names are written as in the status, schema.name: tidemill doctor {chosen.file} shows what is said.",
        )  # fmt: skip
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "accepted": [asdict(notice) for notice in cleared]})
        return
    for notice in cleared:
        terminal.say(f"accepted: {notice.code} {notice.subject}: {notice.what}")
