"""Stores the dead letters of a group's batches, and says so; waits while there is no room for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from tidemill.dlq import DeadLetterRecord, DeadLetters, Kept
from tidemill.errors import DeadLettersFull, Refused, TidemillError, is_retryable
from tidemill.retry import RetryPolicy
from tidemill.telemetry.events import warn

_WHILE_FULL = RetryPolicy(most=30.0)


class DeadLetterWriter:
    """`on_retry` is called with an error per sink whose dead letters wait."""

    def __init__(
        self,
        store: DeadLetters,
        stopping: threading.Event,
        on_retry: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._store, self._stopping, self._on_retry = store, stopping, on_retry

    def keep(self, dead_letters: Sequence[DeadLetterRecord]) -> Kept:
        """Durable when it returns. For ever while there is no room, unless that is to stop the group."""
        tries = _WHILE_FULL.begin(self._stopping)
        while dead_letters:
            try:
                kept = self._store.put(dead_letters)
            except TidemillError as error:
                if self._store.config.overflow == "halt" and isinstance(error, DeadLettersFull):
                    raise Refused(error.what, where=error.where, fix=error.fix) from error
                if tries.over() or not is_retryable(error):
                    raise
                warn("stream.dead_letters_wait", error=error.what, pause=round(tries.wait, 1))
                self._on_retry({dead_letter.sink: f"{error.what}\n{error.fix}" for dead_letter in dead_letters})
                tries.pause()
            else:
                self._tell(kept)
                return kept
        return Kept()

    def _tell(self, kept: Kept) -> None:
        """Invariant 7."""
        for dead_letter in kept.new:
            warn("stream.dead_letter_kept", **self._about(dead_letter), reason=dead_letter.reason)
        for dead_letter in kept.dropped:
            warn("stream.dead_letter_dropped", **self._about(dead_letter), reason="dlq.overflow is drop_oldest")

    def _about(self, dead_letter: DeadLetterRecord) -> dict[str, object]:
        return {
            "sink": dead_letter.sink, "offset": dead_letter.offset, "table": dead_letter.table,
            "event_id": dead_letter.event_id,
        }  # fmt: skip
