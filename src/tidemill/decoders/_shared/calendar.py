"""Days of the calendar and times of transactions, for every decoder's kernels."""

from __future__ import annotations

from typing import Any

from numba import njit

MICROS_PER_DAY = 86_400_000_000

# A transaction whose commit time nobody knows.
NO_TIME = -(2**63)


@njit(cache=True, nogil=True, inline="always")
def days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; year 0 is 1 BC."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    yoe = y - era * 400
    doy = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return era * 146097 + doe - 719468


@njit(cache=True, nogil=True, inline="always")
def micros(day: Any, hour: Any, minute: Any, second: Any, fraction: Any) -> Any:
    """Microseconds since 1970-01-01 of a time of day; `fraction` are microseconds of the second."""
    return day * MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
