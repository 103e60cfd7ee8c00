"""`tidemill recover FILE`: goes on when the source no longer has what comes next (slot lost, server restored), or when
capture cannot get past one transaction (`--skip-transaction`, `--after`).

What is lost is the operator's decision, never the program's (invariant 7): it says so, and asks. What the log still
holds is delivered as ever; only capture begins anew, from now on at a new slot, or after what was left out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidemill.cli import target, terminal

app = terminal.commands()

Copy = Annotated[
    bool,
    typer.Option("--snapshot", help="Copy all captured tables again; sinks with tables lose what the source lost."),
]
Accept = Annotated[bool, typer.Option("--accept-gap", help="Go on without the changes that are lost.")]
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
def recover(
    file: target.File,
    snapshot: Copy = False,
    accept_gap: Accept = False,
    table: Table = None,
    after: After = None,
    skip_transaction: Skip = False,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """After a lost position: copy the tables again, or accept the gap. The pipeline must be stopped.

    With --snapshot nothing stays missing: all captured tables are copied at the next start, and sinks that keep tables
    remove rows that the source no longer has. With --accept-gap what changed until now is never captured. With
    --skip-transaction only the transaction at which capture stopped is lost, with --after what was committed up to a
    position. With --table, accept only what is said of one table (table-incomplete, table-dropped): the position stays.
    """
    from tidemill.config.advice import fill_in
    from tidemill.errors import ConfigError, SourceError
    from tidemill.model.position import Position
    from tidemill.service.maintenance import recovery as service

    chosen = target.choose(file, pipeline)
    if sum((snapshot, accept_gap, table is not None, after is not None, skip_transaction)) != 1:
        raise ConfigError(
            "there are five ways to go on: --snapshot, --accept-gap, --skip-transaction, --after and --table",
            where=chosen.file, fix="Choose one. --snapshot is the one after which nothing is missing.",
        )  # fmt: skip
    confirm = terminal.confirm(SourceError, yes=yes)
    if table is not None:
        accepted = service.accept(chosen, table, confirm)
        if as_json:
            terminal.show_json({"pipeline": chosen.name, "accepted": [asdict(notice) for notice in accepted]})
            return
        for notice in accepted:
            terminal.say(f"accepted: {notice.code} {notice.subject}: {notice.what}")
        return
    if snapshot:
        done = service.copy_again(chosen, confirm)
    elif accept_gap:
        done = service.capture_from_now(chosen, confirm)
    else:
        done = service.pass_over(chosen, Position(after) if after else None, confirm)
    if as_json:
        terminal.show_json(
            {"pipeline": chosen.name, "offset": done.offset, "from": done.before, "to": done.after, "lost": done.lost,
             "waiting": done.waiting, "snapshot": done.snapshot or None}
        )  # fmt: skip
        return
    terminal.say(f"{chosen.name} captures what is committed after {done.after}. Lost: {done.lost}.")
    if done.snapshot:
        terminal.say(f"Start the pipeline: snapshot {done.snapshot} copies all captured tables and makes it good.")
    else:
        again = fill_in("tidemill snapshot start FILE", chosen)
        terminal.say(f"The destinations lack what it changed: {again} copies the tables again.")
    for sink, count in done.waiting.items():
        if count:
            terminal.say(f"{count:,} events from before the gap are still delivered to {sink} first.")
