"""The stream of one group of sinks, as its supervisor sees it: started, watched, started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemill.contracts.schema_change_store import StoredChange
from tidemill.errors import DeliveryError, ErrorData, StreamError, TidemillError, is_retryable, to_data
from tidemill.model.position import Offset
from tidemill.retry import RetryPolicy
from tidemill.service.run.status import SinkState, SinkStatus
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import SinkGroup
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport
from tidemill.stream.spark.session import reach_spark
from tidemill.telemetry import events

_FAILING_STOP_SECONDS = 5.0
_SETTLED_SECONDS = 5.0


class GroupRun:
    """An error that a retry may mend starts the stream again, with backoff; any other is raised by `watch`."""

    def __init__(self, group: SinkGroup, ledger: Ledger, make: Callable[[GroupRun], StreamLoop]) -> None:
        self.group = group
        self.last_error: ErrorData = {}
        self.given_up = False
        self.waiting: StoredChange | None = None
        self._ledger = ledger
        self._make = make
        self._stream: StreamLoop | None = None
        self._start_at = self._started_at = 0.0
        self._retries = RetryPolicy().begin()
        self._changing = threading.Lock()  # batches report from Spark's thread; guards what is below
        self._sinks = {sink: SinkStatus(sink, waited_for=group.votes) for sink in group.sinks}

    @property
    def offset(self) -> Offset:
        return self._ledger.position(self.group).offset

    @property
    def running(self) -> bool:
        return self._stream is not None and self._stream.running

    @property
    def lanes_stand(self) -> bool:
        """What it was given up for, nobody waits for."""
        return self.given_up or (self._stream is not None and self._stream.lanes_stand)

    @property
    def failing(self) -> bool:
        """It does not get on, whoever is to blame."""
        return bool(self.last_error) or any(sink.state is not SinkState.OK for sink in self._sinks.values())

    def watch(self) -> None:
        """Called again and again."""
        if self.given_up:
            return
        try:
            if self._stream is not None:
                if not self._stream.running:
                    self._stream.await_end(0.1)  # raises what ended it
                    raise StreamError(
                        "the stream ended by itself",
                        where=f"pipeline {self._ledger.policy.pipeline}",
                        fix="It is started again; if that repeats, look at Spark's log.",
                    )
            elif time.monotonic() >= self._start_at:
                with reach_spark():
                    stream = self._make(self)
                stream.start()
                self._stream, self._started_at = stream, time.monotonic()
                self._update(lost=self._ledger.lost_events(self.group))
        except TidemillError as failure:
            self._stream = None
            if not is_retryable(failure):
                raise
            wait = self._retries.take()
            self._start_at = time.monotonic() + wait
            self.on_error(failure)
            if isinstance(failure, DeliveryError):
                self.on_retry(dict.fromkeys(self.group.sinks, failure.what))
            events.warn(
                "stream.restarted", sinks=",".join(self.group.sinks),
                code=failure.code, error=failure.what, after_seconds=round(wait, 1),
            )  # fmt: skip

    def give_up(self, error: TidemillError) -> None:
        """The pipeline goes on without these sinks; their position stays for the next start."""
        self.given_up = True
        self.ask_to_stop()
        self._stream = None
        self._update(state=SinkState.FAILED, error=str(error))
        events.fail(
            "stream.sink_failed", sinks=",".join(self.group.sinks),
            offset=self.offset, code=error.code, error=error.what, where=error.where, fix=error.fix,
        )  # fmt: skip

    def begin_again(self) -> None:
        """After a pause, as after a start: what was given up is tried again."""
        self.given_up = False
        self._start_at, self._retries = 0.0, RetryPolicy().begin()
        with self._changing:
            self._recover()

    def ask_to_stop(self) -> None:
        if self._stream is not None:
            self._stream.ask_to_stop()

    def stop(self, timeout: float) -> None:
        """A batch that its sink does not take anyway is not waited for."""
        if self._stream is not None:
            self._stream.stop(min(timeout, _FAILING_STOP_SECONDS) if self.failing else timeout)
            self._stream = None

    def sinks(self, tail: Offset) -> list[SinkStatus]:
        at = self.offset
        settled = self._stream is not None and time.monotonic() - self._started_at > _SETTLED_SECONDS
        with self._changing:
            if at >= tail and settled:
                self._recover()
            return [replace(sink, offset=at, lag_events=max(0, tail - at)) for sink in self._sinks.values()]

    def on_retry(self, errors: Mapping[str, str]) -> None:
        """`errors` names every sink that holds up the batch now."""
        with self._changing:
            for name, sink in self._sinks.items():
                state = SinkState.FAILING if name in errors else SinkState.OK
                self._sinks[name] = replace(sink, state=state, error=errors.get(name, ""))

    def on_wait(self, change: StoredChange | None) -> None:
        """The stream waits for a decision on this change; None: not any more."""
        self.waiting = change

    def on_error(self, problem: TidemillError) -> None:
        """Of the stream itself: its sinks are as they were."""
        self.last_error = to_data(problem)

    def on_batch(self, report: BatchReport) -> None:
        self._retries.reset()
        with self._changing:
            self._recover()
            for name, sink in self._sinks.items():
                done = sum(receipt.events for receipt in report.receipts if receipt.sink == name)
                dead_letters = sum(dead_letter.sink == name for dead_letter in report.dead_letters)
                self._sinks[name] = replace(
                    sink, events=sink.events + done, dead_letters=sink.dead_letters + dead_letters
                )

    def _recover(self) -> None:
        """What was wrong is over: a batch went through, or there is none left."""
        self.last_error = {}
        self._sinks = {name: replace(sink, state=SinkState.OK, error="") for name, sink in self._sinks.items()}

    def _update(self, **changes: object) -> None:
        with self._changing:
            self._sinks = {name: replace(sink, **changes) for name, sink in self._sinks.items()}  # type: ignore[arg-type]
