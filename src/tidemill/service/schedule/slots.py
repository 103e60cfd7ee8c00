"""Which slots of which cron are due: queued once each, by whichever server looks first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tidemill.config.spec.schedule import Schedule
from tidemill.service.schedule.run_queue import RunQueue
from tidemill.service.schedule.values import RunRequest
from tidemill.telemetry import events


def utc_clock() -> datetime:
    return datetime.now(UTC)


class SlotWatch:
    """One thread calls `look`, again and again. The newest run of a pipeline says how far its slots are done: of those
    that passed while no server was there, the last one is run. Slots pass unused while a pipeline is not wanted, and
    while its last run still goes on."""

    def __init__(self, queue: RunQueue, clock: Callable[[], datetime] = utc_clock) -> None:
        self._queue, self._clock = queue, clock
        self._done: dict[str, datetime] = {}

    def look(self, wanted: Mapping[str, Schedule], unwanted: Mapping[str, Schedule]) -> None:
        now = self._clock()
        for name in self._done.keys() - wanted.keys() - unwanted.keys():
            del self._done[name]
        for name in unwanted:
            self._done[name] = now
        for name, schedule in wanted.items():
            if name not in self._done:
                self._done[name] = self._last_run(name) or now
            slot = schedule.last_until(now)
            if slot is not None and slot > self._done[name]:
                self._queue_slot(name, slot)
                self._done[name] = slot

    def _last_run(self, name: str) -> datetime | None:
        """Slots up to here are done."""
        times = [each.slot or each.queued for each in self._queue.runs(name, limit=10)]
        return max(map(datetime.fromisoformat, times), default=None)

    def _queue_slot(self, name: str, slot: datetime) -> None:
        request = RunRequest(name, slot.isoformat(), "schedule")
        run = self._queue.put(request)
        if run.slot == request.slot:
            events.emit("schedule.run_queued", pipeline=name, run=run.id)
        else:
            events.warn("schedule.slot_skipped", pipeline=name, slot=request.slot, run=run.id,
                        reason="the last run has not ended")  # fmt: skip
