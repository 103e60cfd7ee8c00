"""`tidemill state export|import`: moves an installation's state store, as one file. Works on the store, not over the
API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import installation, terminal

if TYPE_CHECKING:
    from tidemill.state.transfer import Transferred

app = terminal.commands("An installation's state store as one file: write it, read it into another store.")

_STATE_DIR = Path(".tidemill")


@app.command("export")
def export_store(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.", show_default=False)],
    state: installation.StateStore = None,
    state_dir: installation.InstallationDir = _STATE_DIR,
    yes: terminal.Yes = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Write the whole store into a file.

    Documents, tokens, lifecycle, positions, snapshots, decisions. No pipeline may run meanwhile. The file is for
    its owner alone: documents of the API are in it as they were sent.
    """
    from tidemill.errors import StateError
    from tidemill.service.state_transfer import export_state

    done = export_state(installation.state_uri(state, state_dir), file, terminal.confirm(StateError, yes=yes))
    _show(done, file, as_json)
    if not as_json:
        terminal.say(f"Read it into another store: tidemill state import {file} --state postgresql://…")


@app.command("import")
def import_store(
    file: Annotated[Path, typer.Argument(help="What `export` wrote.", show_default=False)],
    state: installation.StateStore = None,
    state_dir: installation.InstallationDir = _STATE_DIR,
    as_json: terminal.AsJson = False,
) -> None:
    """Read such a file into a store that has nothing.

    All of it, or nothing."""
    from tidemill.service.state_transfer import import_state

    _show(import_state(installation.state_uri(state, state_dir), file), file, as_json)
    if not as_json:
        terminal.say("Servers and documents must use this store from now on (--state, state_uri), and no other.")


def _show(done: Transferred, file: Path, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"file": str(file), "version": done.version, "rows": done.rows})
        return
    terminal.show_table(("table", "rows"), [(name, count) for name, count in done.rows.items() if count])
    terminal.say(f"{sum(done.rows.values())} rows, version {done.version}")
