"""Who may run a pipeline where several servers share a state store: what the store keeps, and its clock."""

from __future__ import annotations

import time
from dataclasses import dataclass


def lease_clock() -> float:
    """Seconds that never go back and go on while the machine sleeps. All processes of one machine read the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A server. `beat` rises with each renewal; a holder whose beat stood still for `seconds` has lost its leases.
    `process` says where it runs, for who is on the same machine (`service/lease/lease_process.py`)."""

    id: str
    beat: int
    seconds: float
    process: str


@dataclass(frozen=True, slots=True)
class StoredLease:
    """`epoch` rises with each new holder, and never falls: it is the fencing number. No holder: it was given back."""

    pipeline: str
    epoch: int
    since: str
    holder: LeaseHolder | None
