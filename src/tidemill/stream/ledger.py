"""Where every group of a pipeline stands, and what follows: the checkpoint, the log's mark, what may be trimmed.

One ledger per running pipeline; its groups' streams call it from their own threads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from tidemill.component import CheckpointStore
from tidemill.errors import ConfigError
from tidemill.log import LogConfig, LogReader, Tail, acknowledge, trim
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Offset, Position
from tidemill.stream.policy import Group, Policy, key_of
from tidemill.telemetry.events import fail
from tidemill.telemetry.points import point

JOINED = "moves with the pipeline's checkpoint"
"""Note on a position that is no longer the sink's own: it became required."""
LOST = "lost events"
"""How the note of a sink begins that lost its place; it stays until an operator moves the position."""

_TRIM_EVERY = 1.0


class Ledger:
    def __init__(self, policy: Policy, store: CheckpointStore, log_uri: str, log: LogConfig | None = None) -> None:
        self.policy = policy
        self._store, self._log_uri = store, log_uri
        self._log_config = log or LogConfig.model_validate({})
        self._log = LogReader(log_uri)
        self._lock = threading.RLock()
        self._kept: dict[str, Checkpoint] = {}
        self._pipeline = Checkpoint(0, Position(""))
        self._opened = False
        self._trimmed_at = 0.0
        self._sizes: dict[Offset, int] = {}  # of the log's segments, for `trim`

    def open(self) -> None:
        """Reads every position, also of groups that start later or never: the log is kept for all of them.

        A group that has none begins where the pipeline stands, and that is saved at once. Else its sink, down from the
        first moment, would begin at some later checkpoint after a restart, and miss what lies between (invariant 7).
        """
        with self._lock:
            if self._opened:
                return
            name = self.policy.pipeline
            self._pipeline = self._store.load(name) or Checkpoint(self._log.head(), Position(""))
            for group in self.policy.groups:
                if group.leads:
                    self._kept[name] = self._pipeline
                    self._join(group)
                else:
                    self._kept[group.key] = self._own(group.key)
            self._opened = True
            self._commit()  # killed between a group's position and the pipeline's, the second is made good here

    def close(self) -> None:
        self._store.close()

    def begin(self, group: Group) -> Checkpoint:
        """Where the group's stream starts. A group that follows and whose next events the log no longer has goes on at
        the log's head, never in silence; a leading one is left where it is, and its planning will say what is gone."""
        self.open()
        with self._lock:
            kept, head = self._kept[group.key], self._log.head()
            if group.leads or kept.offset >= head:
                return kept
            note = f"{LOST} {kept.offset} to {head - 1}"
            fail(
                "stream.place_lost", pipeline=self.policy.pipeline, sink=group.sinks[0], first=kept.offset,
                last=head - 1, events=head - kept.offset,
                fix="The log does not hold them any more: copy the tables to the sink yourself. To keep more for a "
                "sink that is away, raise log.keep_for_optional_bytes.",
            )  # fmt: skip
            self._save(group.key, Checkpoint(head, self._log.position_at(head), note=note))
            return self._kept[group.key]

    def advance(self, group: Group, end: Offset, position: Position) -> Checkpoint:
        """Every sink of the group has everything before `end`. Saved, then the pipeline's checkpoint follows if the
        policy says so (invariant 1), then the log is told (invariant 2)."""
        with self._lock:
            before = self._kept[group.key].note
            self._save(group.key, Checkpoint(end, position, note=before if before.startswith(LOST) else ""))
            point("stream.checkpointed")
            self._commit()
            self._trim()
            return self._kept[group.key]

    @property
    def checkpoint(self) -> Checkpoint:
        """The pipeline's."""
        with self._lock:
            return self._pipeline

    def position(self, group: Group) -> Checkpoint:
        with self._lock:
            return self._kept.get(group.key, self._pipeline)

    def _save(self, key: str, checkpoint: Checkpoint) -> None:
        self._kept[key] = self._store.save(key, checkpoint, expect=self._kept[key].version)

    def _commit(self) -> None:
        reached = self.policy.reached({key: kept.offset for key, kept in self._kept.items()})
        leading = self._kept.get(self.policy.pipeline)
        if leading is not None:
            moved, self._pipeline = leading.version > self._pipeline.version, leading
        else:
            moved = reached > self._pipeline.offset
            if moved:
                voter = next(kept for kept in self._kept.values() if kept.offset == reached)
                self._pipeline = self._store.save(
                    self.policy.pipeline, Checkpoint(reached, voter.position), expect=self._pipeline.version
                )
        if moved:
            acknowledge(self._log_uri, Tail(self._pipeline.offset, self._pipeline.position))

    def _trim(self) -> None:
        now = time.monotonic()
        if now - self._trimmed_at < _TRIM_EVERY:
            return
        self._trimmed_at = now
        least = min(kept.offset for kept in self._kept.values())
        trim(self._log_uri, self._pipeline.offset, self._log_config, held=least, sizes=self._sizes)

    def _own(self, key: str) -> Checkpoint:
        kept = self._store.load(key)
        if kept is not None and kept.note != JOINED:
            return kept
        begin = replace(self._pipeline, note="began with the pipeline's checkpoint")
        return self._store.save(key, begin, expect=kept.version if kept else 0, force=True)

    def _join(self, group: Group) -> None:
        """A sink that was behind must not skip what it misses by becoming required (invariant 7)."""
        for sink in group.sinks:
            key = key_of(self.policy.pipeline, sink)
            own = self._store.load(key)
            if own is None or own.note == JOINED:
                continue
            if own.offset < self._pipeline.offset:
                raise ConfigError(
                    f'sink "{sink}" now moves with the pipeline, which is at offset {self._pipeline.offset}, but has '
                    f"only the events before {own.offset}",
                    where=f'pipeline "{self.policy.pipeline}"',
                    fix="Set required: false (or the commit policy as it was) until it has caught up, or give up what "
                    f"is between: tidemill checkpoints set FILE {self._pipeline.offset} --sink {sink}",
                )
            self._store.save(key, replace(own, note=JOINED), expect=own.version)
