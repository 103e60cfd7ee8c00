"""`tidemill resync FILE`: goes on when the source no longer has what comes next (slot lost, server restored), or when
capture cannot get past one transaction (`--skip-transaction`, `--after`).

The gap is the operator's decision, never the program's (invariant 7): it says what is lost, and asks. What the log
still holds is delivered as ever; only capture begins anew, from now on at a new slot, or after what was left out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidemill.cli import target, terminal

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
    from tidemill.errors import ConfigError, SourceError
    from tidemill.model.position import Position
    from tidemill.service import resync as service

    chosen = target.choose(file, pipeline)
    if sum((table is not None, after is not None, skip_transaction)) > 1:
        raise ConfigError(
            "--table, --after and --skip-transaction are three different things", where=chosen.file, fix="Choose one."
        )
    confirm = terminal.confirm(SourceError, yes=yes)
    if table is not None:
        accepted = service.accept(chosen, table, confirm)
        if as_json:
            terminal.show_json({"pipeline": chosen.name, "accepted": [asdict(notice) for notice in accepted]})
            return
        for notice in accepted:
            terminal.say(f"accepted: {notice.code} {notice.subject}: {notice.what}")
        return
    if after is None and not skip_transaction:
        done = service.capture_from_now(chosen, confirm)
    else:
        done = service.pass_over(chosen, Position(after) if after else None, confirm)
    if as_json:
        terminal.show_json(
            {"pipeline": chosen.name, "offset": done.offset, "from": done.before, "to": done.after, "lost": done.lost,
             "waiting": done.waiting}
        )  # fmt: skip
        return
    terminal.say(f"{chosen.name} captures what is committed after {done.after}. Lost: {done.lost}.")
    terminal.say("Copy the tables to the destinations yourself before you start the pipeline again.")
    for sink, count in done.waiting.items():
        if count:
            terminal.say(f"{count:,} events from before the gap are still delivered to {sink} first.")
