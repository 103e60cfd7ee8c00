"""What a run leaves in the state store for others to read: the pipeline's changes of state, and its last status."""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime

from tidemill.contracts import StateStore, Transition
from tidemill.errors import TidemillError
from tidemill.service.status import PipelineStatus
from tidemill.telemetry import events

_EVERY_SECONDS = 1.0


class RunRecord:
    """For any thread. It never raises: a store that is away or full must not stop a pipeline for what people read. What
    could not be written is written with the next status, in order."""

    def __init__(self, state: StateStore, pipeline: str, *, actor: str | None = None) -> None:
        self._state, self._pipeline = state, pipeline
        self._actor = actor or current_actor()
        self._noting = threading.Lock()
        self._pending: list[Transition] = []
        self._seen: str | None = None
        self._written: PipelineStatus | None = None
        self._next_at = 0.0
        self._silent = False  # it was said that the store cannot be written

    def note(self, status: PipelineStatus) -> None:
        """A change of state is written at once, anything else about once a second."""
        with self._noting:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            if status.state != self._seen:
                self._seen = status.state
                reason = status.error.get("what", "")
                self._pending.append(Transition(str(status.state), self._actor, reason, now))
                self._next_at = 0.0
            if status == self._written or time.monotonic() < self._next_at:
                return
            self._next_at = time.monotonic() + _EVERY_SECONDS
            try:
                while self._pending:
                    self._state.record(self._pipeline, self._pending[0])
                    del self._pending[0]
                self._state.save_status(self._pipeline, asdict(status), now)
            except TidemillError as error:
                if not self._silent:
                    events.warn("pipeline.status_not_written", pipeline=self._pipeline, error=error.what,
                                where=error.where)  # fmt: skip
                self._silent = True
            else:
                self._written, self._silent = status, False


def current_actor() -> str:
    """Who changes a pipeline's state where nobody else is named: the user of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"
