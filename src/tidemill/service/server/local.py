"""The pipelines of an installation from its state store alone, for who may write that: `tidemill pipelines` without a
server's address.

What is shown is what the processes of the store publish. A change is asked of them as one server asks another
(requests.py); where none is there it is made in the store, and the next server that starts finds it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tidemill.config import Pipeline
from tidemill.config.confine import Confinement
from tidemill.contracts.installation import AuditEntry, StoredDocument
from tidemill.errors import (
    ConfigError,
    EnvironmentProblem,
    ErrorData,
    LeaseHeld,
    LifecycleError,
    TidemillError,
    UnknownPipeline,
    from_data,
    to_data,
)
from tidemill.model.clock import utc_now
from tidemill.service.cause import Cause
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.lease.leases import LeaseKeeper, keeping_leases
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import ControlSettings, DocumentSet, name_in
from tidemill.service.server.elsewhere import TAKE_SECONDS, UNASSIGNED, has_followed
from tidemill.service.server.lifecycle import REQUEST_SECONDS
from tidemill.service.server.managed import LeaseView, PipelineView
from tidemill.service.server.requests import POLL_SECONDS, ask
from tidemill.service.server.status_board import NEXT_RUN, status_of
from tidemill.state import inspect_store, open_installation
from tidemill.state.installation import InstallationStore

ANSWER_SECONDS = 3.0
"""How long any process of the store may take to hear of a request about a pipeline that nobody runs."""

_WANTED = {
    "start": m.RUNNING, "resume": m.RUNNING, "restart": m.RUNNING, "pause": m.PAUSED, "stop": m.STOPPED,
    "drain": m.STOPPED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Where an installation is: the store, and the directory of pipelines that came over the API."""

    state: str
    state_dir: Path
    shared: bool


@contextmanager
def open_local(place: LocalPlace, *, create: bool = False) -> Iterator[LocalInstallation]:
    """Without `create`, `EnvironmentProblem` where there is no store."""
    if not create and inspect_store(place.state).version == 0:
        raise EnvironmentProblem(
            "there is no state store", where=inspect_store(place.state).where,
            fix="Name the one of your installation with --store or --state-dir, or a server with --server. "
            "`tidemill pipelines apply -f FILE` makes one.",
        )  # fmt: skip
    with closing(open_installation(place.state)) as store, keeping_leases(place.state) as leases:
        yield LocalInstallation(place, store, leases)


class LocalInstallation:
    def __init__(self, place: LocalPlace, store: InstallationStore, leases: LeaseKeeper) -> None:
        self._store, self._leases = store, leases
        # Its user owns the store, and everything that documents in it may reach.
        confinement = Confinement((Path("/"),), frozenset(os.environ), True)
        settings = ControlSettings(
            state_dir=place.state_dir, state_uri=place.state if place.shared else None, confinement=confinement
        )
        self._documents = DocumentSet(settings)

    # ---------------------------------------------------------------- how they are

    def views(self) -> list[PipelineView]:
        """By name."""
        return [self._view(each) for each in self._store.documents()]

    def view(self, name: str) -> PipelineView:
        return self._view(self._find(name))

    def _view(self, stored: StoredDocument) -> PipelineView:
        pipeline, problem = self._resolve(stored)
        lease = self._leases.find(stored.pipeline)
        holder = LeaseView.of(lease, "") if lease is not None and self._leases.is_alive(lease) else None
        found = self._store.status(stored.pipeline)
        document = orjson.loads(found.document) if found is not None else {}
        status = status_of(document) if found is not None else None
        waits, next_run = found is not None and found.state == m.WAITING_FOR_SCHEDULE, None
        captures = stored.desired == m.PAUSED and pipeline is not None and pipeline.spec.pause.capture
        state, error = stored.desired, problem
        if holder is not None:
            current = found is not None and found.epoch == holder.epoch and not waits
            state = found.state if found is not None and current else str(State.CREATED)
            error = status.error if status is not None and current else error
        elif stored.desired == m.RUNNING and waits and self._anybody_there():
            state, next_run = m.WAITING_FOR_SCHEDULE, document.get(NEXT_RUN)
        elif stored.desired == m.RUNNING or captures:
            state, error = UNASSIGNED, to_data(_nobody())
            if found is not None and found.state == State.FAILED and status is not None:
                state, error = found.state, status.error
        return PipelineView(
            stored.pipeline, state, stored.desired, stored.origin, stored.version, _tenant(stored, pipeline),
            pipeline.labels if pipeline else {}, pipeline.mask_secrets()["spec"] if pipeline else None,
            stored.changed_by, stored.changed_at, status or PipelineStatus(stored.pipeline, State.CREATED), error,
            holder, next_run,
        )  # fmt: skip

    def _resolve(self, stored: StoredDocument) -> tuple[Pipeline | None, ErrorData]:
        """A file's document is not in the store; one of the API may name variables that are not set here."""
        if stored.origin != m.API:
            return None, ErrorData()
        try:
            ((_, pipeline),) = self._documents.resolve([orjson.loads(stored.document)], [])
        except TidemillError as error:
            return None, to_data(error)
        return pipeline, ErrorData()

    def _find(self, name: str) -> StoredDocument:
        found = self._store.document(name)
        if found is None:
            raise UnknownPipeline(f'there is no pipeline "{name}"', fix="tidemill pipelines ls shows those there are.")
        return found

    # ---------------------------------------------------------------- what is asked of them

    def change(self, name: str, action: str, cause: Cause, given: Mapping[str, Any] | None = None) -> PipelineView:
        """One of start, pause, resume, stop, restart, drain. Returns when it is done, or nobody is there to do it."""
        stored = self._find(name)
        if not self._ask(name, action, given or {}, cause):
            if action == "resume" and stored.desired != m.PAUSED:
                raise LifecycleError(
                    f'pipeline "{name}" is {self.view(name).state}: only a paused pipeline can be resumed',
                    fix="Nothing was changed. Start it.",
                )
            self._audit(cause, action, name)
            self._store.set_desired(name, _WANTED[action])
        return self._await(name, _WANTED[action])

    def apply(self, data: Mapping[str, Any], cause: Cause) -> PipelineView:
        """Creates the pipeline, or gives it this document."""
        name = name_in(data)
        stored = self._store.document(name)
        if stored is not None and stored.origin != m.API:
            raise _of_file(name)
        action = "create" if stored is None else "replace"
        asked: dict[str, Any] = {"document": data, "expect": [stored.version] if stored is not None else None}
        if not self._ask(name, action, asked, cause):
            self._keep(data, stored, cause)
        return self._await(name, stored.desired if stored is not None else m.RUNNING)

    def delete(self, name: str, cause: Cause) -> None:
        stored = self._find(name)
        if stored.origin != m.API:
            raise _of_file(name)
        if not self._ask(name, "delete", {"expect": [stored.version]}, cause):
            self._audit(cause, "delete", name)
            self._store.remove_document(name)
            self._store.forget_published(name)

    def _ask(self, name: str, action: str, given: Mapping[str, Any], cause: Cause) -> bool:
        """False if no process is there that does it."""
        lease = self._leases.find(name)
        runs = lease is not None and self._leases.is_alive(lease)
        if not runs and not self._anybody_there():
            return False
        seconds = float(given.get("seconds", 0.0)) + REQUEST_SECONDS
        patient = TAKE_SECONDS if runs else ANSWER_SECONDS
        answer = ask(self._store, name, action, given, cause, patient=patient, seconds=seconds)
        if answer is None and runs:
            raise LifecycleError(
                f'the process that runs pipeline "{name}" does not hear',
                fix="Nothing was changed. Try again; a process that is gone loses the pipeline within seconds.",
            )
        if answer is not None and "error" in answer:
            raise from_data(answer["error"])
        return answer is not None

    def _anybody_there(self) -> bool:
        """Whether a server or a worker of this store may be alive: of another machine's nobody knows at once."""
        processes = (LeaseProcess.read(each.process) for each in self._leases.others())
        return any(each is None or not each.is_gone for each in processes)

    def _keep(self, data: Mapping[str, Any], stored: StoredDocument | None, cause: Cause) -> None:
        name, others = name_in(data), [each for each in self._store.documents() if each.origin == m.API]
        known = [orjson.loads(each.document) for each in others if each.pipeline != name]
        self._documents.resolve([*known, data], [])
        text, now = orjson.dumps(data).decode(), utc_now()
        new = StoredDocument(name, m.API, text, m.new_version(), m.RUNNING, cause.actor, now)
        self._audit(cause, "create" if stored is None else "change", name)
        kept = (
            self._store.add_document(new) if stored is None
            else self._store.change_document(new, instead_of=stored.version)
        )  # fmt: skip
        if not kept:
            raise LifecycleError(f'pipeline "{name}" was changed just now', fix="Nothing was changed. Try again.")

    def _await(self, name: str, desired: str) -> PipelineView:
        """A process publishes what it did right after it answered."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            view = self.view(name)
            followed = view.lease is None or view.status is None or has_followed(view.status.state, desired)
            if followed or time.monotonic() > until:
                return view
            time.sleep(POLL_SECONDS)

    def _audit(self, cause: Cause, action: str, name: str) -> None:
        self._store.audit(AuditEntry(utc_now(), cause.actor, action, name, cause.reason))


def changed_views(before: Mapping[str, PipelineView], now: Sequence[PipelineView]) -> list[PipelineView]:
    """Those whose state or status is another one, for who follows them."""
    return [each for each in now if each.name not in before or _news_of(before[each.name]) != _news_of(each)]


def _news_of(view: PipelineView) -> tuple[str, PipelineStatus | None]:
    return view.state, view.status


def _tenant(stored: StoredDocument, pipeline: Pipeline | None) -> str | None:
    return m.Managed(
        stored.pipeline, stored.origin, orjson.loads(stored.document) if stored.document else None, None, pipeline,
        None, stored.version, stored.desired, stored.changed_by, stored.changed_at,
    ).tenant  # fmt: skip


def _of_file(name: str) -> ConfigError:
    return ConfigError(f'pipeline "{name}" comes from a file of a server', fix="Change the file; the server reads it.")


def _nobody() -> LeaseHeld:
    return LeaseHeld(
        "no server and no worker of this state store runs it", fix="Start one: tidemill serve, with this state store."
    )
