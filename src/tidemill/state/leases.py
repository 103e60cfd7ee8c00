"""Which server runs which pipeline, in the same tables on SQLite and PostgreSQL.

A server renews all its leases by one row: its beat. Nobody compares clocks of two machines. Who wants a pipeline that
another server has watches that server's beat by its own clock, and takes the pipeline when the beat has not changed for
as long as the holder said (ADR 41). Renewals and takeovers exclude each other: of both at once, one sees the other.
"""

from __future__ import annotations

from typing import Any

from tidemill.contracts.lease import LeaseHolder, StoredLease
from tidemill.model.clock import utc_now
from tidemill.state.store import Database

_LOCKED = "leases"
_LEASE = (
    "SELECT l.pipeline, l.epoch, l.since, l.holder, h.beat, h.seconds, h.process"
    " FROM pipeline_leases l LEFT JOIN lease_holders h ON h.holder = l.holder"
)


class LeaseStore:
    """Safe between threads and processes. `StateError` is worth a retry, unless the store is too new."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def renew(self, holder: str, seconds: float, process: str) -> dict[str, int]:
        """The holder is alive; the epochs of the pipelines that are still its own."""
        with self._database.writing(_LOCKED) as run:
            run(
                "INSERT INTO lease_holders (holder, beat, seconds, process) VALUES (?, 1, ?, ?)"
                " ON CONFLICT (holder) DO UPDATE SET beat = lease_holders.beat + 1, seconds = excluded.seconds",
                holder, seconds, process,
            )  # fmt: skip
            return dict(run("SELECT pipeline, epoch FROM pipeline_leases WHERE holder = ?", holder))

    def leases(self) -> list[StoredLease]:
        """In the order of their names."""
        with self._database.reading() as run:
            return [_lease(row) for row in run(f"{_LEASE} ORDER BY l.pipeline")]

    def find(self, pipeline: str) -> StoredLease | None:
        with self._database.reading() as run:
            found = run(f"{_LEASE} WHERE l.pipeline = ?", pipeline)
        return _lease(found[0]) if found else None

    def holder(self, holder: str) -> LeaseHolder | None:
        """Also of one that has no pipeline now; None if it has left, or never renewed."""
        with self._database.reading() as run:
            found = run("SELECT holder, beat, seconds, process FROM lease_holders WHERE holder = ?", holder)
        return LeaseHolder(*found[0]) if found else None

    def holders(self) -> list[LeaseHolder]:
        """All that have renewed and not left, also those that have no pipeline now."""
        with self._database.reading() as run:
            return [LeaseHolder(*row) for row in run("SELECT holder, beat, seconds, process FROM lease_holders")]

    def forget_idle(self, holder: str) -> None:
        """The holder is gone; a lease that it still has keeps its row, for who takes that over."""
        with self._database.writing(_LOCKED) as run:
            self._forget_idle(run, holder)

    def take(self, pipeline: str, holder: str, seen: StoredLease | None) -> int | None:
        """The new epoch, if the lease is still as it was `seen`: same epoch, same holder, same beat. Else None."""
        with self._database.writing(_LOCKED) as run:
            found = run(f"{_LEASE} WHERE l.pipeline = ?", pipeline)
            if (_lease(found[0]) if found else None) != seen:
                return None
            epoch = seen.epoch + 1 if seen is not None else 1
            run(
                "INSERT INTO pipeline_leases (pipeline, holder, epoch, since) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (pipeline) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch,"
                " since = excluded.since",
                pipeline, holder, epoch, utc_now(),
            )  # fmt: skip
            if seen is not None and seen.holder is not None and seen.holder.id != holder:
                self._forget_idle(run, seen.holder.id)
            return epoch

    def release(self, pipeline: str, holder: str, epoch: int) -> None:
        """Does nothing where somebody else has it by now."""
        with self._database.writing(_LOCKED) as run:
            run(
                "UPDATE pipeline_leases SET holder = '' WHERE pipeline = ? AND holder = ? AND epoch = ?",
                pipeline, holder, epoch,
            )  # fmt: skip

    def leave(self, holder: str) -> None:
        """The holder ends: all it has is free."""
        with self._database.writing(_LOCKED) as run:
            run("UPDATE pipeline_leases SET holder = '' WHERE holder = ?", holder)
            self._forget_idle(run, holder)

    def close(self) -> None:
        self._database.close()

    @staticmethod
    def _forget_idle(run: Any, holder: str) -> None:
        """Of a holder that comes back after all, the next renewal makes a new row."""
        if not run("SELECT pipeline FROM pipeline_leases WHERE holder = ?", holder):
            run("DELETE FROM lease_holders WHERE holder = ?", holder)


def _lease(row: tuple[Any, ...]) -> StoredLease:
    pipeline, epoch, since, holder, beat, seconds, process = row
    held = LeaseHolder(holder, beat or 0, seconds or 0.0, process or "") if holder else None
    return StoredLease(pipeline, epoch, since, held)
