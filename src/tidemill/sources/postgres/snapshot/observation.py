"""What a chunk's read has to see: what an observation before it noted, and whether the read proves it (ADR 28).

A commit stands in the WAL, and may be in our log, before others see it: until its session has left the list of running
transactions, which with synchronous replication may be seconds later. It holds the lock on its transaction number until
then. So an observation is the numbers that are locked, and a read proves it when all of them have ended for its
snapshot. A standby shows a commit as soon as it has replayed it: there a read proves every observation up to whose end
of the log it has replayed. Who observes and who reads may have come to different servers: a dsn may name several hosts,
or a name that stands for several standbys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from tidemill.sources.postgres.lsn import parse_lsn

REPLAYED = "CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0')::text END"
"""NULL on a server that is no standby."""


@dataclass(frozen=True, slots=True)
class Observation:
    """`logged`: how far the stream was in the log. `running`: transactions that others might not see yet; None of a
    standby, which tells nothing of a primary."""

    logged: str
    running: tuple[int, ...] | None

    def to_json(self) -> str:
        return orjson.dumps([self.logged, self.running]).decode()

    @classmethod
    def from_json(cls, text: str) -> Observation:
        match orjson.loads(text):
            case [str(logged), running]:
                return cls(logged, None if running is None else tuple(running))
            case [*running]:  # of an earlier version, as the next
                return cls("", tuple(running))
            case _:
                return cls("", None)


def prove(snapshot: str, replayed: str | None, observations: Sequence[Observation]) -> int | None:
    """The newest observation of which all is seen: by a standby that has `replayed` so much, else by the snapshot for
    which its transactions have all ended (`pg_current_snapshot`)."""
    low, high, running = snapshot.split(":")
    lowest, next_one = int(low), int(high)
    active = {int(number) for number in running.split(",") if number}

    def ended(short: int) -> bool:
        # pg_locks has the lower half of the number: the nearest one to the snapshot's is meant.
        number = (next_one >> 32 << 32) + short
        number += (number < next_one - (1 << 31)) * (1 << 32) - (number > next_one + (1 << 31)) * (1 << 32)
        return number < lowest or (number < next_one and number not in active)

    def sees(observed: Observation) -> bool:
        if replayed is not None:
            return bool(observed.logged) and parse_lsn(replayed) >= parse_lsn(observed.logged)
        return observed.running is not None and all(map(ended, observed.running))

    return next((index for index in reversed(range(len(observations))) if sees(observations[index])), None)
