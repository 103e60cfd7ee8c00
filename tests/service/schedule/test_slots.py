"""Which slots are queued, by a clock that the test moves and a queue that only notes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemill.config.spec.schedule import Schedule
from tidemill.service.schedule.slots import SlotWatch
from tidemill.service.schedule.values import RunRequest, RunState, ScheduledRun

QUARTERS = {"orders": Schedule(cron="*/15 * * * *")}


class NotingQueue:
    def __init__(self) -> None:
        self.slots: list[str] = []
        self.busy: ScheduledRun | None = None
        self.history: list[ScheduledRun] = []

    def put(self, request: RunRequest) -> ScheduledRun:
        if self.busy is not None:
            return self.busy
        self.slots.append(request.slot[11:16])
        return run(request.slot)

    def runs(self, pipeline: str, limit: int = 20) -> list[ScheduledRun]:
        return self.history


def run(slot: str, queued: str = "") -> ScheduledRun:
    return ScheduledRun(f"orders/{slot}", "orders", RunState.DONE, slot, "schedule", queued, "", "")


class Clock:
    def __init__(self) -> None:
        self.now = at("12:07:30")

    def __call__(self) -> datetime:
        return self.now


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-31T{time}+00:00")


@pytest.fixture
def queue() -> NotingQueue:
    return NotingQueue()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_new_pipeline_waits_for_its_first_slot_and_each_slot_is_queued_once(queue: NotingQueue, clock: Clock) -> None:
    watch = SlotWatch(queue, clock)  # type: ignore[arg-type]
    for time in ("12:07:30", "12:14:59", "12:15:00", "12:15:01", "12:29:59", "12:30:02"):
        clock.now = at(time)
        watch.look(QUARTERS, {})
    assert queue.slots == ["12:15", "12:30"]


def test_of_slots_that_passed_while_no_server_was_there_the_last_one_is_run(queue: NotingQueue, clock: Clock) -> None:
    queue.history = [run("", "2026-01-31T09:20:00.000+00:00"), run("2026-01-31T09:15:00+00:00")]
    watch = SlotWatch(queue, clock)  # type: ignore[arg-type]
    watch.look(QUARTERS, {})
    watch.look(QUARTERS, {})
    assert queue.slots == ["12:00"]


def test_slots_pass_while_a_pipeline_is_not_wanted_or_its_last_run_goes_on(queue: NotingQueue, clock: Clock) -> None:
    queue.history = [run("2026-01-31T09:15:00+00:00")]
    watch = SlotWatch(queue, clock)  # type: ignore[arg-type]
    watch.look({}, QUARTERS)
    clock.now = at("12:16:00")
    watch.look({}, QUARTERS)
    watch.look(QUARTERS, {})
    assert queue.slots == []
    queue.busy = run("", "2026-01-31T12:29:00.000+00:00")
    clock.now = at("12:30:00")
    watch.look(QUARTERS, {})
    queue.busy = None
    clock.now = at("12:44:00")
    watch.look(QUARTERS, {})
    assert queue.slots == []
    clock.now = at("12:45:00")
    watch.look(QUARTERS, {})
    assert queue.slots == ["12:45"]


@pytest.mark.parametrize(
    ("cron", "following", "last"),
    [
        ("*/15 * * * *", "2026-01-31T12:15:00+00:00", "2026-01-31T12:00:00+00:00"),
        ("*/10 * * * * *", "2026-01-31T12:07:40+00:00", "2026-01-31T12:07:30+00:00"),
        ("@daily", "2026-02-01T00:00:00+00:00", "2026-01-31T00:00:00+00:00"),
        ("0 9 * * mon-fri", "2026-02-02T09:00:00+00:00", "2026-01-30T09:00:00+00:00"),
    ],
)
def test_slots_are_in_utc_and_a_slot_is_due_in_its_own_second(cron: str, following: str, last: str) -> None:
    now = datetime(2026, 1, 31, 12, 7, 30, 1, tzinfo=UTC)
    found = Schedule(cron=cron)
    assert found.next_after(now) == datetime.fromisoformat(following)
    assert found.last_until(now) == datetime.fromisoformat(last)


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("61 * * * *", "out of range"),
        ("* * *", "this one has 3"),
        ("* * * * * * *", "this one has 7"),
        ("R * * * *", "give numbers"),
        ("H/5 * * * *", "give numbers"),
        ("0 0 30 2 *", "never comes"),
        ("often", "this one has 1"),
    ],
)
def test_a_cron_that_is_wrong_or_never_comes_is_refused_with_an_example(cron: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        Schedule(cron=cron)
    assert "*/15 * * * *" in str(refused.value)


def test_without_the_extra_a_schedule_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "tidemill\[schedule\]"'):
        Schedule(cron="@daily")
