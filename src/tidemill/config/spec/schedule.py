"""What stands under `schedule:`: when a server runs the pipeline, and when such a run ends."""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from tidemill.contracts import Config

if TYPE_CHECKING:
    from croniter import croniter

INSTALL = 'pip install "tidemill[schedule]"'
_HASHED_OR_RANDOM = re.compile(r"(?i)^[hr](\(|/|$)")


class Schedule(Config):
    """Runs the pipeline by cron instead of all the time: docs/schedules.md. Only a server does."""

    cron: str = Field(
        max_length=200,
        description="When, in UTC: minute, hour, day of the month, month, day of the week. With six fields the first "
        "one is seconds. Or @hourly, @daily, @weekly, @monthly.",
        examples=["*/15 * * * *"],
    )
    max_empty_reads: int = Field(
        default=0, ge=0, le=3600,
        description="A run ends after so many looks in a row, one a second, that found nothing new. 0 ends it when all "
        "that the source had at its start is delivered.",
    )  # fmt: skip

    @field_validator("cron")
    @classmethod
    def _has_a_next_time(cls, cron: str) -> str:
        for package in ("croniter", "dbos"):
            if importlib.util.find_spec(package) is None:
                raise ValueError(f"a schedule needs {package}, which is not installed. Run: {INSTALL}")
        fields = cron.split()
        if not cron.startswith("@") and len(fields) not in (5, 6):
            raise ValueError(f"a cron has five fields, or six with seconds, and this one has {len(fields)}. {_EXAMPLE}")
        if any(_HASHED_OR_RANDOM.match(each) for each in fields):
            raise ValueError(f"H and R mean another time in each process: give numbers. {_EXAMPLE}")
        try:
            _iterate(cron, datetime.now(UTC)).get_next(datetime)
        except ValueError as error:  # CroniterError is one
            raise ValueError(f'"{cron}" never comes or is no cron: {error}. {_EXAMPLE}') from error
        return cron

    def next_after(self, time: datetime) -> datetime:
        found: datetime = _iterate(self.cron, time).get_next(datetime)
        return found

    def last_until(self, time: datetime) -> datetime | None:
        """The last slot at or before `time`; None if there was none within decades."""
        try:
            found: datetime = _iterate(self.cron, time.replace(microsecond=0) + _SECOND).get_prev(datetime)
        except ValueError:
            return None
        return found


_SECOND = timedelta(seconds=1)
_EXAMPLE = 'For instance "*/15 * * * *", every quarter of an hour'


def _iterate(cron: str, time: datetime) -> croniter:
    from croniter import croniter

    return croniter(cron, time, second_at_beginning=True)
