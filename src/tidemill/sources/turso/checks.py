"""What `tidemill doctor` says about a Turso source. Looks only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome, Resting
from tidemill.errors import TidemillError
from tidemill.sources._shared.sqlite_catalog import quote, table_of_statement, trigger_names_table
from tidemill.sources._shared.sqlite_names import check_names, list_names
from tidemill.sources._shared.sqlite_source import check_waiting
from tidemill.sources.turso import resume
from tidemill.sources.turso.client import CdcForm, TursoFile
from tidemill.sources.turso.errors import UNREADABLE

if TYPE_CHECKING:
    from tidemill.sources.turso import TursoConfig

_SYNC = "turso_sync_last_change_id"


def run_checks(config: TursoConfig, resting: Resting | None = None) -> Iterator[Check]:
    try:
        file = TursoFile(config.path, config.experimental_features, config.where)
    except TidemillError as error:
        yield Check("file", Outcome.FAIL, error.what, error.fix)
        return
    with contextlib.closing(file):
        try:
            yield Check("file", Outcome.PASS, f"{config.path}")
            form = file.form(config.cdc_table)
            yield _form(file, form)
            yield _images(file, form)
            yield from _tables(file, config)
            yield _position(file, form, config, resting)
        except TidemillError as error:
            yield Check("change table", Outcome.FAIL, error.what, error.fix)
    yield Check(
        "connections", Outcome.WARN, "the pragma records the changes of the connection that set it, and of no other",
        "Set it on every connection that writes, each time it is opened.",
    )  # fmt: skip


def _form(file: TursoFile, form: CdcForm) -> Check:
    last, _ = file.last(form)
    if form.transactions:
        return Check("change table", Outcome.PASS, f'"{form.table}" tells transactions apart, {last} changes so far')
    return Check(
        "change table", Outcome.WARN, f'"{form.table}" is of version 1: transactions are not told apart',
        "A newer Turso makes version 2 in a file that has none: drop the table once everything is captured.",
    )  # fmt: skip


def _images(file: TursoFile, form: CdcForm) -> Check:
    """The mode is the connection's; what it recorded shows it."""
    latest = f"SELECT * FROM {quote(form.table)} WHERE change_type < 2 ORDER BY change_id DESC LIMIT 1000"
    rows = file.rows(
        'SELECT sum(change_type = 0 AND "before" IS NULL),'
        f' sum(change_type <> -1 AND "after" IS NULL AND "before" IS NULL) FROM ({latest})'
    )
    lacking = [name for name, count in zip(("old", "new"), rows[0], strict=True) if count]
    if not lacking:
        return Check("mode", Outcome.PASS, "the latest changes have whole rows")
    return Check(
        "mode", Outcome.WARN, f"some of the latest changes lack their {' and '.join(lacking)} rows: a connection"
        " records in another mode than full",
        "PRAGMA capture_data_changes_conn('full'). What lacks its new row is completed with the row as it is when it is"
        " read; without the old one a changed text key leaves the old row at the destinations.",
    )  # fmt: skip


def _tables(file: TursoFile, config: TursoConfig) -> Iterator[Check]:
    every = file.statements()
    names = [name for name in every if config.is_selected(name)]
    yield from check_names(config.patterns, [n for n in every if n != config.cdc_table], config.snapshot)
    statements = {name: table_of_statement(every[name]) for name in names}
    if unreadable := [name for name, table in statements.items() if table is None]:
        yield Check("tables", Outcome.FAIL, f"statements that cannot be read: {list_names(unreadable)}", UNREADABLE)
    described = [table for table in statements.values() if table is not None]
    if bare := [table.name for table in described if not table.key]:
        fix = "Their events have no key: order is kept per table only. Add a primary key."
        yield Check("keys", Outcome.WARN, f"no primary key on {list_names(bare)}", fix)
    triggers = file.rows("SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'")
    if own := sorted({t for t, sql in triggers if config.is_selected(t) and trigger_names_table(sql, t)}):
        yield Check(
            "triggers", Outcome.WARN, f"a trigger writes to its own table: {list_names(own)}",
            "Turso 0.8 records what a trigger writes before the change that it follows from: where both are of one row,"
            " destinations keep the older one. Let the application write it, or use `type: sqlite` with SQLite.",
        )  # fmt: skip
    if config.trim and file.rows("SELECT 1 FROM sqlite_schema WHERE name = ?", [_SYNC]):
        yield Check(
            "sync",
            Outcome.WARN,
            "Turso's sync reads the same change table",
            "Set `trim: false`: what it has not pushed yet must stay.",
        )


def _position(file: TursoFile, form: CdcForm, config: TursoConfig, resting: Resting | None) -> Check:
    if resting is None:
        return Check("position", Outcome.PASS, f"none yet: capture begins at start_position: {config.start_position}")
    try:
        place = resume.further(resting.after, resting.confirmed, config.where)
        resume.check(file, form, place, config.where)
    except TidemillError as error:
        return Check("position", Outcome.FAIL, error.what, error.fix)
    return check_waiting(file.last(form)[0] - place.number)
