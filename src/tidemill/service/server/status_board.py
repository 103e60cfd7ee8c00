"""How pipelines are, across the processes of a state store: each publishes the status of those that it runs, and reads
that of all others.

A change of state is published at once, numbers once a second. What is published counts for an epoch of the lease: a
server that has lost it can say what it likes (`state/shared_requests.py`). Between two runs of a schedule nobody has
the lease: servers that keep the schedule publish that it waits, and for when.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any

import orjson

from tidemill.contracts.installation import PublishedStatus
from tidemill.errors import StateError
from tidemill.model.clock import utc_now
from tidemill.service.run.status import PipelineStatus, QuarantinedTable, SinkState, SinkStatus, State
from tidemill.service.runtime import Runtime
from tidemill.service.server.managed import WAITING_FOR_SCHEDULE
from tidemill.service.snapshot.status import TableStatus
from tidemill.state.installation import InstallationStore

NEXT_RUN = "next_run"


class StatusBoard:
    """`look` is called about once a second; `find` waits for nothing."""

    def __init__(self, runtime: Runtime, store: InstallationStore) -> None:
        self._runtime, self._store = runtime, store
        self._publishing = threading.Lock()
        self._changing = threading.Lock()  # guards what is below
        self._due: dict[str, PipelineStatus] = {}
        self._said: dict[str, tuple[int, str, bytes]] = {}
        self._others: dict[str, tuple[PublishedStatus, PipelineStatus]] = {}
        runtime.subscribe(on_status=self._note, own=True)

    def find(self, name: str) -> tuple[PublishedStatus, PipelineStatus] | None:
        """As the last look saw it."""
        return self._others.get(name)

    def read(self, name: str) -> tuple[PublishedStatus, PipelineStatus] | None:
        """As the store has it now."""
        found = self._store.status(name)
        return self._take(found) if found is not None else None

    def publish_waiting(self, status: PipelineStatus, epoch: int, next_run: str) -> None:
        """Of a pipeline that waits for its schedule, with how its last run was; `epoch` is that of the run. Written
        when it changes."""
        document = orjson.dumps({**asdict(status), NEXT_RUN: next_run}, default=str)
        said = epoch, WAITING_FOR_SCHEDULE, document
        with self._publishing:
            if self._said.get(status.name) == said:
                return
            self._store.publish(PublishedStatus(status.name, epoch, said[1], document.decode(), utc_now()))
            with self._changing:
                self._said[status.name] = said

    def forget(self, name: str) -> None:
        """The pipeline is removed, here too: nothing of it is published any more."""
        with self._publishing:
            self._store.forget_published(name)

    def look(self) -> None:
        """`StateError` if the store does not answer."""
        with self._changing:
            due = list(self._due)
        for name in due:
            self._publish(name)
        published = self._store.statuses()
        for found in published.values():
            self._take(found)
        with self._changing:
            for gone in self._others.keys() - published.keys():
                del self._others[gone]

    def _take(self, found: PublishedStatus) -> tuple[PublishedStatus, PipelineStatus]:
        """Subscribers hear of what is new, once."""
        with self._changing:
            known = self._others.get(found.pipeline)
            if known is not None and (known[0] == found or known[0].epoch > found.epoch):
                return known
            taken = self._others[found.pipeline] = found, status_of(orjson.loads(found.document))
        is_old = found.state == WAITING_FOR_SCHEDULE and (known is None or known[1] == taken[1])
        if not is_old and self._runtime.lease_epoch(found.pipeline) != found.epoch:
            self._runtime.announce(taken[1])
        return taken

    def _note(self, status: PipelineStatus) -> None:
        """In the subscriber's thread."""
        if status.state is State.CREATED or not self._runtime.lease_epoch(status.name):
            return
        with self._changing:
            said = self._said.get(status.name)
            self._due[status.name] = status
        if said is None or said[1] != status.shown_state:
            with suppress(StateError):  # with the next look
                self._publish(status.name)

    def _publish(self, name: str) -> None:
        """The newest that is due. It is taken by who writes it: who came first with an older one cannot come last."""
        with self._publishing:
            with self._changing:
                status = self._due.get(name)
            if status is None:
                return
            document = orjson.dumps(asdict(status), default=str)
            said = epoch, state, _ = self._runtime.lease_epoch(name), status.shown_state, document
            if epoch and self._said.get(name) != said:  # without one it was removed
                self._store.publish(PublishedStatus(name, epoch, state, document.decode(), utc_now()))
                with self._changing:
                    self._said[name] = said
            with self._changing:
                if self._due.get(name) is status:
                    del self._due[name]


def status_of(data: dict[str, Any]) -> PipelineStatus:
    """What another process published; a field that only it knows is left out."""
    known = {each.name: data[each.name] for each in fields(PipelineStatus) if each.name in data}
    known["state"] = State(known["state"])
    known["sinks"] = tuple(SinkStatus(**{**each, "state": SinkState(each["state"])}) for each in known["sinks"])
    known["tables"] = tuple(TableStatus(**each) for each in known["tables"])
    known["quarantined"] = tuple(QuarantinedTable(**each) for each in known["quarantined"])
    known["notices"] = tuple(known["notices"])
    return PipelineStatus(**known)
