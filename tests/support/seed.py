"""The seed of a run, and the part of a matrix that it chooses.

It comes from the last commit that changed the product, so that each such commit tries other combinations and all runs
of it try the same. The header of a run names it; `TIDEMILL_SEED=… make test` repeats it. `make crash` leaves nothing
out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

Case = TypeVar("Case", bound=tuple[Any, ...])

#: Whether matrices are run whole.
WHOLE = os.environ.get("TIDEMILL_MATRIX") == "whole"


@cache
def run_seed() -> int:
    """`TIDEMILL_SEED`, else a number made of the last commit in src/; without a repository always the same."""
    if given := os.environ.get("TIDEMILL_SEED"):
        return int(given)
    command = ["git", "log", "-1", "--format=%H", "--", "src"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    except FileNotFoundError:
        return 1
    return int(done.stdout[:8] or "1", 16) if done.returncode == 0 else 1


def dice(*names: object) -> Random:
    """Chances of this run's seed; each name has its own, whatever else the run does."""
    return Random(f"{run_seed()} {names}")


def choose(name: object, cases: Sequence[Any], *, whole: bool | None = None) -> list[Any]:
    """One of the cases, where each shows nearly what the others show; with whole matrices all of them."""
    return list(cases) if (WHOLE if whole is None else whole) else [dice(name).choice(cases)]


def sample(cases: Sequence[Case], *, whole: bool | None = None, seed: int | None = None) -> list[Case]:
    """So many of the cases that each value of each axis (place in the tuple) is there at least once, in their order."""
    if WHOLE if whole is None else whole:
        return list(cases)
    chance = dice(*cases) if seed is None else Random(seed)
    left = {value for case in cases for value in enumerate(case)}
    chosen = set()
    # Those that bring most come first; among equals chance decides.
    for _ in cases:
        new = {at: len(left & set(enumerate(case))) for at, case in enumerate(cases)}
        most = max(new.values())
        if most == 0:
            break
        at = chance.choice([at for at, count in new.items() if count == most])
        chosen.add(at)
        left -= set(enumerate(cases[at]))
    return [case for at, case in enumerate(cases) if at in chosen]
