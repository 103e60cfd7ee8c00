"""`tidemill snapshot`: the copy of what is in the tables already, started, watched, paused and cancelled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import target, terminal
from tidemill.cli.snapshot_view import SnapshotView

if TYPE_CHECKING:
    from tidemill.service.snapshot.requests import SnapshotStatus

app = terminal.commands("The copy of what is in the tables already: start, status, pause, resume, cancel.")

Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Copy this table: schema.name or a pattern. May be repeated.")
]
Where = Annotated[str, typer.Option("--where", help="Copy only rows for which this SQL condition holds.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on showing it until no snapshot is under way.")]

_STATES = {
    "waiting": "begins when the pipeline runs and no snapshot before it is under way",
    "running": "goes on while the pipeline runs",
}
_NONE = ("has no snapshot. `tidemill snapshot start` asks for one.", "has no snapshot yet: `run` says when it begins.")


@app.command()
def start(
    file: target.File,
    table: Tables = None,
    where: Where = "",
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Copy the captured tables, or those of --table.

    It begins at once, or when the pipeline starts."""
    from tidemill.service.snapshot import requests as snapshot_requests

    chosen = target.choose(file, pipeline)
    snapshot_requests.check_names(chosen, table or [])
    _show(chosen.name, snapshot_requests.start(chosen, table or [], where), as_json)


@app.command()
def status(
    file: target.File, watch: Watch = False, pipeline: target.Which = None, as_json: terminal.AsJson = False
) -> None:
    """Show how far it is: the one under way, or the newest.

    Below the tables stands what sinks have not got yet."""
    from tidemill.service.snapshot import requests as snapshot_requests
    from tidemill.service.snapshot.plan import config_of
    from tidemill.service.snapshot.status import count_undelivered

    chosen = target.choose(file, pipeline)
    progress = SnapshotView()
    while True:
        found = snapshot_requests.status(chosen)
        going = [each for each in reversed(found) if each.state in (snapshot_requests.WAITING, "running", "paused")]
        lacking = count_undelivered(chosen) if found else {}
        if as_json:
            shown = [each.as_data() for each in found]
            terminal.show_json({"pipeline": chosen.name, "snapshots": shown, "undelivered": lacking})
        elif not found:
            terminal.say(f"{chosen.name} {_NONE[config_of(chosen) is not None]}")
        else:
            if watch:
                terminal.clear()
            progress.show((going or found)[0], lacking)
            if next_ones := [f"snapshot {each.id}" for each in going[1:]]:
                more = f" and {len(next_ones) - 2} more" if len(next_ones) > 2 else ""
                terminal.say(f"After it: {', '.join(next_ones[:2])}{more}.")
        if not watch or not going:
            return
        time.sleep(1)


@app.command()
def pause(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Read no more chunks until it is resumed; changes go on."""
    from tidemill.service.snapshot import requests as snapshot_requests

    chosen = target.choose(file, pipeline)
    _show(chosen.name, snapshot_requests.pause(chosen), as_json)


@app.command()
def resume(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Go on where it was paused."""
    from tidemill.service.snapshot import requests as snapshot_requests

    chosen = target.choose(file, pipeline)
    _show(chosen.name, snapshot_requests.resume(chosen), as_json)


@app.command()
def cancel(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """End it before all rows are copied.

    Those that were not copied yet stay missing at the destinations."""
    from tidemill.service.snapshot import requests as snapshot_requests

    chosen = target.choose(file, pipeline)
    _show(chosen.name, snapshot_requests.cancel(chosen), as_json)


def _show(name: str, status: SnapshotStatus, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"pipeline": name, "snapshot": status.as_data()})
    else:
        terminal.say(f"{name}: snapshot {status.id} {_STATES.get(status.state, f'is {status.state}')}")
