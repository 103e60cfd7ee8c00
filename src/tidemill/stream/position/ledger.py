"""Where every group of a pipeline stands, and what follows: the checkpoint, the log's mark, what may be trimmed.

One ledger per running pipeline; its groups' streams call it from their own threads.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from tidemill.contracts import CheckpointStore, LostRange, StateStore
from tidemill.errors import CheckpointConflict, CheckpointError, ConfigError, LogCorrupt, LogError
from tidemill.log import LogConfig, LogReader, Tail, acknowledge, trim
from tidemill.log.store import Store, open_store
from tidemill.model.delivery import Checkpoint, key_of
from tidemill.model.position import Offset, Position
from tidemill.state.older import has_joined, lost_range_of
from tidemill.stream.position.commit_policy import Policy, SinkGroup
from tidemill.telemetry.events import fail, warn
from tidemill.telemetry.failpoints import failpoint

_TRIM_EVERY = 1.0
_MOVES_ALONG = "moves with the pipeline's checkpoint since"


class Ledger:
    """`store` keeps positions; `state` keeps what a sink has lost, until an operator moves the sink or it joins the
    others."""

    def __init__(
        self,
        policy: Policy,
        store: CheckpointStore,
        log_uri: str | Store,
        log: LogConfig | None = None,
        *,
        state: StateStore,
        floor: Callable[[], Offset | None] = lambda: None,
        guard: Callable[[], None] = lambda: None,
        fence: bool = False,
    ) -> None:
        """The log is not trimmed beyond `floor`, whatever was delivered: a snapshot still looks at it. `guard` raises
        when this process may not run the pipeline any more, and is asked before every save. With `fence` another
        process may still believe that it runs the pipeline: each position gets a new version first, so that every
        save of that process is a `CheckpointConflict`."""
        self.policy, self.state = policy, state
        self._store = store
        self._log_config = log or LogConfig.model_validate({})
        self.log_store = open_store(log_uri)
        self._log = LogReader(self.log_store.reopen())
        self._floor, self._guard, self._fence = floor, guard, fence
        self._lock = threading.RLock()
        self._kept: dict[str, Checkpoint] = {}
        self._lost: dict[str, list[LostRange]] = {}
        self._pipeline = Checkpoint(0, Position(""))
        self._opened = False
        self._writer = uuid.uuid4().hex
        self._confirmed = 0  # version of the pipeline's checkpoint that the log knows of
        self._trimmed_at = 0.0
        self._trimming: threading.Thread | None = None
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
            self._pipeline = self._load(name) or Checkpoint(self._log.head(), Position(""))
            for group in self.policy.groups:
                if group.leads:
                    self._kept[name] = self._pipeline
                    self._join(group)
                else:
                    self._kept[group.key] = self._own(group)
            self._commit()  # what was killed between a group's position, the pipeline's and the log's mark
            self._opened = True

    def close(self) -> None:
        self._store.close()

    def begin(self, group: SinkGroup) -> Checkpoint:
        """Where the group's stream starts. A group that follows and whose next events the log no longer has goes on at
        the log's head, never in silence; for one that leads that is an operator's decision (invariant 7)."""
        self.open()
        with self._lock:
            kept, head = self._kept[group.key], self._log.head()
            if kept.offset >= head:
                return kept
            if group.leads:
                raise LogCorrupt(
                    f"the checkpoint is at offset {kept.offset}, but the log begins at {head}: what is between is gone",
                    where=f'pipeline "{self.policy.pipeline}", {self._log.label}',
                    fix="Is this the log that the checkpoint belongs to? To go on without these events: "
                    f"tidemill checkpoints set FILE {head}",
                )
            fail(
                "stream.place_lost", pipeline=self.policy.pipeline, sink=group.sinks[0], first=kept.offset,
                last=head - 1, events=head - kept.offset,
                fix="The log does not hold them any more: copy the tables to the sink yourself. To keep more for a "
                "sink that is away, raise log.keep_for_optional_bytes.",
            )  # fmt: skip
            # Noted before the position moves: killed in between, the loss is found and noted once more.
            self._note_loss(group, LostRange(kept.offset, head, head - kept.offset))
            self._save(group.key, Checkpoint(head, self._log.position_at(head), note=self._note(group)))
            return self._kept[group.key]

    def advance(self, group: SinkGroup, end: Offset, position: Position, base: Offset | None = None) -> Checkpoint:
        """Every sink of the group has everything before `end`. Saved, then the pipeline's checkpoint follows if the
        policy says so (invariant 1), then it is acknowledged in the log (invariant 2). `base` as in `Checkpoint`."""
        with self._lock:
            self._save(group.key, Checkpoint(end, position, note=self._note(group), base=base))
            failpoint("stream.checkpointed")
            self._commit()
            self._trim()
            return self._kept[group.key]

    @property
    def checkpoint(self) -> Checkpoint:
        """The pipeline's."""
        with self._lock:
            return self._pipeline

    def position(self, group: SinkGroup) -> Checkpoint:
        with self._lock:
            return self._kept.get(group.key, self._pipeline)

    def lost_events(self, group: SinkGroup) -> int:
        """How many events its sink never gets."""
        with self._lock:
            return sum(lost.events for lost in self._lost.get(group.key, ()))

    def _note_loss(self, group: SinkGroup, lost: LostRange) -> None:
        sink = group.sinks[0]
        self.state.add_lost_range(self.policy.pipeline, sink, lost)
        self._lost[group.key] = self.state.lost_ranges(self.policy.pipeline, sink)

    def _note(self, group: SinkGroup) -> str:
        """The note on its position, for people."""
        lost = self._lost.get(group.key)
        if not lost:
            return ""
        return f"lost {self.lost_events(group)} events between {lost[0].first} and {max(each.end for each in lost) - 1}"

    def _save(self, key: str, checkpoint: Checkpoint) -> None:
        self._kept[key] = self._read_stored(key, checkpoint, self._kept[key].version)

    def _read_stored(self, key: str, checkpoint: Checkpoint, expect: int) -> Checkpoint:
        """Saves as this ledger. After an error nobody knows whether it is stored, so the store is looked at; a store
        that cannot be asked either takes the next save of ours all the same (`checkpoints/_shared.py`)."""
        self._guard()
        own = replace(checkpoint, writer=self._writer)
        try:
            return self._store.save(key, own, expect=expect)
        except CheckpointConflict:
            raise
        except CheckpointError as error:
            with suppress(CheckpointError):
                found = self._store.load(key)
                if found is not None and found.answers(own, expect):
                    warn("stream.checkpoint_answer_lost", pipeline=self.policy.pipeline, error=error.what)
                    return found
            raise

    def _load(self, key: str) -> Checkpoint | None:
        kept = self._store.load(key)
        if kept is None or not self._fence:
            return kept
        return self._read_stored(key, kept, kept.version)

    def _commit(self) -> None:
        leading = self._kept.get(self.policy.pipeline)
        if leading is not None:
            self._pipeline = leading
        else:
            reached = self.policy.reached({key: kept.offset for key, kept in self._kept.items()})
            if reached > self._pipeline.offset:
                voter = next(kept for kept in self._kept.values() if kept.offset == reached)
                self._pipeline = self._read_stored(
                    self.policy.pipeline, Checkpoint(reached, voter.position, base=voter.base), self._pipeline.version
                )
        # Also when nothing moved but the last word to the log failed: capture waits for it when the log is full. A log
        # that was moved away does not reach so far; capture begins it anew, from the checkpoint.
        if self._confirmed != self._pipeline.version and self._log.tail().offset >= self._pipeline.offset:
            acknowledge(self.log_store, Tail(self._pipeline.offset, self._pipeline.position))
            self._confirmed = self._pipeline.version

    def _trim(self) -> None:
        now = time.monotonic()
        if now - self._trimmed_at < _TRIM_EVERY or (self._trimming is not None and self._trimming.is_alive()):
            return
        self._trimmed_at = now
        least = min(kept.offset for kept in self._kept.values())
        floor = self._floor()
        before = self._pipeline.offset if floor is None else min(floor, self._pipeline.offset)
        if self.log_store.appends:
            self._remove_segments(before, least)
            return
        # Each append is two objects there, and to remove one takes several requests: no batch waits for that. Whoever
        # is killed meanwhile leaves a log that begins later.
        self._trimming = threading.Thread(target=self._remove_segments, args=(before, least), name="trim", daemon=True)
        self._trimming.start()

    def _remove_segments(self, before: Offset, held: Offset) -> None:
        try:
            trim(self.log_store, before, self._log_config, held=held, sizes=self._sizes)
        except LogError as error:  # the batch is delivered all the same; the next one tries again
            warn("stream.not_trimmed", pipeline=self.policy.pipeline, error=error.what, where=error.where)

    def _own(self, group: SinkGroup) -> Checkpoint:
        kept = self._load(group.key)
        if kept is not None and is_own(kept):
            self._lost[group.key] = self.state.lost_ranges(self.policy.pipeline, group.sinks[0])
            if not self._lost[group.key] and (older := lost_range_of(kept.note)):
                self._note_loss(group, older)
            return kept
        self.state.forget_lost_ranges(self.policy.pipeline, group.sinks[0])
        begin = replace(self._pipeline, note="began with the pipeline's checkpoint")
        return self._store.save(group.key, begin, expect=kept.version if kept else 0, force=True)

    def _join(self, group: SinkGroup) -> None:
        """A sink that lagged must not skip what it misses by becoming required (invariant 7)."""
        for sink in group.sinks:
            key = key_of(self.policy.pipeline, sink)
            own = self._store.load(key)
            if own is None or not is_own(own):
                continue
            if own.offset < self._pipeline.offset:
                raise ConfigError(
                    f'sink "{sink}" now moves with the pipeline, which is at offset {self._pipeline.offset}, but has '
                    f"only the events before {own.offset}",
                    where=f'pipeline "{self.policy.pipeline}"',
                    fix="Set required: false (or the commit policy as it was) until it has caught up, or give up what "
                    f"is between: tidemill checkpoints set FILE {self._pipeline.offset} --sink {sink}",
                )
            self._store.save(key, replace(own, joined=True, note=_MOVES_ALONG), expect=own.version)
            self.state.forget_lost_ranges(self.policy.pipeline, sink)


def is_own(kept: Checkpoint) -> bool:
    """Whether a position under a sink's key is still the sink's: it is no more once the sink moves with the others."""
    return not (kept.joined or has_joined(kept.note))
