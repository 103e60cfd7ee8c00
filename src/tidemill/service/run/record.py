"""What a run leaves in the state store for others to read: the pipeline's changes of state."""

from __future__ import annotations

import threading
import time
from contextlib import closing

from tidemill.config import Pipeline
from tidemill.contracts import StateStore, Transition
from tidemill.errors import TidemillError
from tidemill.model.clock import utc_now
from tidemill.service.cause import Cause, current_actor
from tidemill.service.run.status import WAITING, PipelineStatus, State
from tidemill.service.schema.barriers import WAITING_NOTICE
from tidemill.state import find_store
from tidemill.telemetry import events

_EVERY_SECONDS = 1.0


class RunRecord:
    """For any thread. It never raises: a store that is away or full must not stop a pipeline for what people read. What
    could not be written is written about a second later, in order."""

    def __init__(self, state: StateStore, pipeline: str, *, actor: str | None = None) -> None:
        self._state, self._pipeline = state, pipeline
        self._actor = actor or current_actor()
        self.cause = Cause(self._actor)
        self._noting = threading.Lock()
        self._pending: list[Transition] = []
        self._seen: str | None = None
        self._waited = False
        self._next_at = 0.0
        self._silent = False  # it was said that the store cannot be written

    def note(self, status: PipelineStatus) -> None:
        """A change of state is written at once. Call with every status: what could not be written is tried again."""
        with self._noting:
            now = utc_now()
            if status.shown_state != self._seen:
                self._seen = status.shown_state
                self._pending.append(self._transition(status, now))
                self._next_at = 0.0
            if not self._pending or time.monotonic() < self._next_at:
                return
            self._next_at = time.monotonic() + _EVERY_SECONDS
            try:
                while self._pending:
                    self._state.record(self._pipeline, self._pending[0])
                    del self._pending[0]
            except TidemillError as error:
                if not self._silent:
                    events.warn("pipeline.status_not_written", pipeline=self._pipeline, error=error.what,
                                where=error.where)  # fmt: skip
                self._silent = True
            else:
                self._silent = False

    def _transition(self, status: PipelineStatus, now: str) -> Transition:
        """Nobody asks for a failure, or for a schema change that waits: it is the process's own."""
        error = status.error.get("what", "")
        cause = Cause(self._actor, error) if status.state in (State.FAILING, State.FAILED) else self.cause
        if status.shown_state == WAITING:
            waits = [each["what"] for each in status.notices if each["code"] == WAITING_NOTICE]
            cause = Cause(self._actor, ". ".join(waits))
        elif self._waited:
            cause = Cause(self._actor, "the schema change was decided on")
        self._waited = status.shown_state == WAITING
        return Transition(status.shown_state, cause.actor, cause.reason or error, now)


def transitions_of(pipeline: Pipeline, limit: int) -> list[Transition]:
    """Newest first; none where nothing has run yet."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return []
    with closing(state):
        return state.transitions(pipeline.name, limit)
