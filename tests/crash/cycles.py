"""How much of the random tests to run: part of 20 cycles in CI, CYCLES of `make crash`, or MINUTES of `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from random import Random

from tests.support.seed import run_seed

CYCLES = int(os.environ.get("TIDEMILL_CRASH_CYCLES", "20"))
SOAK_MINUTES = float(os.environ.get("TIDEMILL_SOAK_MINUTES", "0"))

# Of ten kills. A driver takes seconds to come back, so that it is killed less often.
VICTIMS = ("capture",) * 5 + ("worker",) * 3 + ("driver",) * 2


def seeds(count: int, first: int) -> list[int]:
    """Others for every commit, and in a soak for every run; named in the test's id."""
    return [first + number + (int(time.time()) if SOAK_MINUTES else run_seed()) for number in range(count)]


def cycles(share: int) -> Iterator[int]:
    """Numbers of the cycles of one of `share` seeds."""
    if not SOAK_MINUTES:
        yield from range(max(1, CYCLES // share))
        return
    number, deadline = 0, time.monotonic() + 60 * SOAK_MINUTES / share
    while time.monotonic() < deadline:
        yield number
        number += 1


def victims(dice: Random) -> Iterator[str]:
    """Each round of ten has the same mix in another order."""
    while True:
        yield from dice.sample(VICTIMS, len(VICTIMS))
