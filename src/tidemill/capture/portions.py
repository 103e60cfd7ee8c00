"""How much of a copy comes into the log at a time while changes come, too.

In one log a change is delivered after everything that was adopted before it. So copied rows come in portions: one is
delivered before the next is adopted, and in between changes have the lanes for themselves for longer than it took. A
portion may take a few times as long as changes alone: in real time a few thousand rows are noticed, in micro-batches a
hundred thousand are not (`capture/snapshot.py`; ADR 77).
"""

from __future__ import annotations

from tidemill.log.backlog import Backlog
from tidemill.model.position import Offset

QUIET_SECONDS = 5.0
"""Without a change for so long, nothing is held back."""

_LEAST_BYTES, _MOST_BYTES, _GRAIN_BYTES = 64 << 10, 8 << 20, 16 << 10
# So little that no lane notices waits for nobody: a repair, while another sink is away.
_UNNOTICED_BYTES = 128 << 10
# A portion is too large if it takes so many times as long as changes alone, and so many seconds more. What those take
# is learned from them, more from quick ones: slow ones may wait for what the copy does beside them.
# A portion may have to wait for a delivery that had begun.
_SLOWER, _SLACK_SECONDS, _LEARNED, _FORGOTTEN = 2.5, 0.005, 0.2, 1.02
# After a portion changes have the lanes for so many times as long as it took, up to so many seconds. To read and stage
# the next one takes processor and disk from them as well, so that most of them are to meet nothing of the copy at all.
# Where deliveries take long, for as long as a portion and a little longer: a copy is to come to its end there, too.
_REST, _REST_SECONDS, _LONG_REST, _LONGEST_REST_SECONDS = 6.0, 0.25, 1.25, 1.0


class Portions:
    """For one thread; times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._waiting = Backlog(_GRAIN_BYTES)  # copied rows that are not delivered
        self._size = 0  # of what was adopted since nothing waited
        self._most = _MOST_BYTES >> 4
        self._alone_seconds: float | None = None  # from a change in the log to its delivery, no copied rows before it
        self._watched: tuple[Offset, float] | None = None  # such a change: where the log ended, and when
        self._adopted_at = self._rests_until = 0.0
        self._changed_at = -QUIET_SECONDS

    def note_change(self, end: Offset, now: float, *, just_now: bool = True) -> None:
        """The stream brought something; the log ends there now. `just_now`: it is not delivered yet."""
        self._changed_at = now
        if just_now and self._watched is None and not self._waiting.bytes:
            self._watched = end, now

    def note_adopted(self, end: Offset, size: int, now: float) -> None:
        if not self._waiting.bytes:
            self._adopted_at, self._size = now, 0
        self._size += size
        self._waiting.add(end, size)
        self._watched = None

    def note_delivered(self, offset: Offset, now: float) -> None:
        if self._watched is not None and offset >= self._watched[0]:
            took, known = now - self._watched[1], self._alone_seconds
            quick = took if known is None else known + _LEARNED * (took - known)
            self._alone_seconds = quick if known is None else min(quick, known * _FORGOTTEN)
            self._watched = None
        if not self._waiting.bytes:
            return
        self._waiting.deliver(offset)
        if not self._waiting.bytes:
            self._learn(now - self._adopted_at)
            self._rests_until = now + _rest_after(now - self._adopted_at)

    def beside_changes(self, now: float) -> bool:
        return now - self._changed_at < QUIET_SECONDS

    def must_wait(self, now: float) -> bool:
        """Whether nothing more may be adopted now."""
        return self.beside_changes(now) and (self._waiting.bytes > _UNNOTICED_BYTES or now < self._rests_until)

    def is_full(self, ready: int, now: float) -> bool:
        """Whether `ready` bytes are enough for one portion, or none may be adopted at all."""
        return self.must_wait(now) or (self.beside_changes(now) and ready > self._most)

    def _learn(self, took: float) -> None:
        # Where no change was ever alone, deliveries take longer than pauses: large portions cost them little.
        known = self._alone_seconds
        if known is not None and took > _SLOWER * known + _SLACK_SECONDS:
            self._most = max(self._most // 2, _LEAST_BYTES)
        elif self._size > self._most // 2:
            self._most = min(self._most * 2, _MOST_BYTES)


def _rest_after(took: float) -> float:
    return min(max(min(_REST * took, _REST_SECONDS), _LONG_REST * took), _LONGEST_REST_SECONDS)
