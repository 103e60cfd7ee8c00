"""Moves an installation's state store: all of it into one file, and from there into a store that has nothing.

The state store is documents, tokens, lifecycle, confirmed positions, snapshots, schema changes. Logs, checkpoints and
dead letters are in state directories, or where documents say, and are not moved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from tidemill import __version__
from tidemill.contracts.lease import StoredLease
from tidemill.disk.private import open_file
from tidemill.disk.replace import DRAFT, publish_file
from tidemill.errors import AlreadyRunning, ConfigError
from tidemill.service.cause import current_actor
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.run.ownership import lock_holder
from tidemill.service.run.status import DRAINING, WAITING, State
from tidemill.state import inspect_store, open_database, open_leases
from tidemill.state.leases import LeaseStore
from tidemill.state.transfer import RecordedState, Transferred, count_rows, export_lines, import_lines, recorded_states

_LEASE_SECONDS = 5.0  # for one answer of the store
_LOOK_SECONDS = 0.2
_RUNNING = frozenset({State.RUNNING, State.FAILING, State.STOPPING, WAITING, DRAINING})


def export_state(uri: str, file: Path, confirm: Callable[[str], None]) -> Transferred:
    """All of the store at one moment, in a file that only its owner may read: documents may have passwords.
    `AlreadyRunning` if a pipeline runs. `confirm` is called where that cannot be told, and raises to stop."""
    if file.exists():
        raise ConfigError("the file is there already", where=str(file), fix="Name another one, or remove it.")
    facts = inspect_store(uri)
    if facts.version != facts.latest:
        raise ConfigError(
            "there is no state store" if not facts.version else "the store was not opened since the last upgrade",
            where=facts.where,
            fix="Name it with --state: a file, or a postgresql:// URI. Nothing was changed."
            if not facts.version
            else "Export it with the version of Tidemill that used it last, or open it once with this one: tidemill "
            "token ls.",
        )
    draft = file.with_name(file.name + DRAFT)
    with closing(open_database(uri, create=False)) as database:
        _refuse_running(uri, recorded_states(database), confirm)
        try:
            with os.fdopen(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as out:
                out.writelines(export_lines(database, {"tidemill": __version__, "exported_by": current_actor()}))
            with draft.open("rb") as written:
                done = count_rows(written)
            publish_file(draft, file)
        except BaseException:
            with suppress(FileNotFoundError):
                draft.unlink()
            raise
    return done


def import_state(uri: str, file: Path) -> Transferred:
    """All or nothing. `ConfigError` if the store has anything, or the file is not whole."""
    with file.open("rb") as lines, closing(open_database(uri, create=False)) as database:
        return import_lines(database, lines, str(file))


def _refuse_running(uri: str, recorded: list[RecordedState], confirm: Callable[[str], None]) -> None:
    with closing(open_leases(uri, seconds=_LEASE_SECONDS)) as store:
        held = _find_alive(store)
    if held is not None and held.holder is not None:
        process = LeaseProcess.read(held.holder.process)
        raise _still_runs(held.pipeline, str(process or "another server"))
    doubtful = []
    for each in recorded:
        directory = None if "://" in uri else Path(uri).absolute().parent / each.pipeline
        holder = lock_holder(directory) if directory is not None and directory.is_dir() else None
        if holder:
            raise _still_runs(each.pipeline, holder)
        if holder is None and each.state in _RUNNING:
            doubtful.append(f"{each.pipeline} ({each.actor}, {each.at})")
    if doubtful:
        confirm(
            f"recorded as running, and perhaps only killed: {', '.join(doubtful)}. What a pipeline that runs does from "
            "now on is not in the file, and its state would be older than its checkpoint"
        )


def _find_alive(store: LeaseStore) -> StoredLease | None:
    """A lease whose holder lives. One on another machine is watched for as long as its lease lasts."""
    watched: dict[str, int] = {}
    until = 0.0
    for lease in store.leases():
        if lease.holder is None:
            continue
        process = LeaseProcess.read(lease.holder.process)
        if process is None or not process.is_here:
            watched[lease.holder.id] = lease.holder.beat
            until = max(until, time.monotonic() + lease.holder.seconds)
        elif not process.is_gone:
            return lease
    while time.monotonic() < until:
        for lease in store.leases():
            if lease.holder is not None and watched.get(lease.holder.id) != lease.holder.beat:
                return lease
        time.sleep(_LOOK_SECONDS)
    return None


def _still_runs(pipeline: str, holder: str) -> AlreadyRunning:
    return AlreadyRunning(
        f'pipeline "{pipeline}" runs', where=holder,
        fix="Nothing was written. Stop every server and every run that uses this store, then export it.",
    )  # fmt: skip
