"""Moves a pipeline's checkpoint by hand: the checkpoint itself, the log's delivered mark, and Spark's directory; or the
position of one sink, which the log's mark has nothing to do with.

All three must agree afterwards. The order matters if we are killed in between: the mark goes back before the
checkpoint and forward after it, so that no more is confirmed to the source than a checkpoint covers (invariant 2);
Spark's directory goes first, because without it the stream starts from our checkpoint, whatever that is.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass

from tidemill.capture.open_log import used_offset
from tidemill.config import Pipeline
from tidemill.errors import CheckpointError, ConfigError
from tidemill.log.bookmark import ACKNOWLEDGED, POSITION, Bookmark
from tidemill.log.delivered import acknowledge
from tidemill.log.entry import Tail
from tidemill.log.reader import LogReader
from tidemill.log.store import masked_uri, open_store
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Offset, Position
from tidemill.service.position.places import epoch_ms, transaction_before
from tidemill.service.position.positions import key_of_move
from tidemill.service.run.ownership import lock_stopped_pipeline


@dataclass(frozen=True, slots=True)
class Move:
    """`current` is what was read while planning; if it has moved since, the store refuses.

    `key` is the pipeline's, or that of one `sink`. `afresh` means that the log is empty and the position comes from the
    operator.
    """

    key: str
    sink: str | None
    current: Checkpoint | None
    to: Tail
    afresh: bool = False

    @property
    def replayed(self) -> int:
        return max(0, self.current.offset - self.to.offset) if self.current else 0

    @property
    def skipped(self) -> int:
        return max(0, self.to.offset - self.current.offset) if self.current and not self.afresh else 0

    @property
    def consequence(self) -> str:
        if self.afresh:
            before = f" instead of {self.current.position}" if self.current else ""
            return f"capture resumes at {self.to.position}{before}: changes in between come again, or never"
        if self.current and self.replayed:
            return f"{self.replayed:,} events before offset {self.current.offset:,} are delivered again"
        if self.current and self.skipped:
            return f"{self.skipped:,} events from offset {self.current.offset:,} on are never delivered"
        return f"delivery begins at offset {self.to.offset:,}, position {self.to.position or 'not known yet'}"


def plan(
    pipeline: Pipeline, *, offset: Offset | None, since: str | None, position: str | None, sink: str | None = None
) -> Move:
    """Where the checkpoint would go: an end of a transaction that the log has. Changes nothing."""
    key = key_of_move(pipeline, sink, afresh=position is not None)
    reader = LogReader(pipeline.log_uri)
    head, tail = reader.head(), reader.tail()
    with closing(pipeline.build_checkpoints()) as store:
        current = store.load(key)
    if position is not None:
        if sink is not None:
            raise ConfigError(
                "--position is the source's, for the whole pipeline", where="--sink", fix="Leave one of them out."
            )
        return _afresh(pipeline, current, tail, offset, Position(position), empty=head == tail.offset)
    if (offset is None) == (since is None):
        raise ConfigError(
            "where to is not said", where=f"pipeline {pipeline.name}", fix="Give either an offset or --since."
        )
    if since is not None:
        offset = transaction_before(reader, reader.offset_at(epoch_ms(since, "--since")))
    if offset is None or not head <= offset <= tail.offset:
        raise CheckpointError(
            f"the log does not have offset {offset}: it holds {head} to {tail.offset}",
            where=masked_uri(pipeline.log_uri),
            fix="Choose an offset in that range, or raise log.retention_seconds to keep more for the next time.",
        )
    before = transaction_before(reader, offset)
    if before != offset:
        # Invariant 3: a batch never begins inside a source transaction.
        raise CheckpointError(
            f"offset {offset} is inside a source transaction",
            where=masked_uri(pipeline.log_uri),
            fix=f"That transaction begins at {before}.",
        )
    return Move(key, sink, current, Tail(offset, reader.position_at(offset)))


def _afresh(
    pipeline: Pipeline, current: Checkpoint | None, tail: Tail, offset: Offset | None, to: Position, *, empty: bool
) -> Move:
    if not empty:
        raise ConfigError(
            "--position is only for an empty log: this one knows the position of each offset",
            where=masked_uri(pipeline.log_uri),
            fix="Leave --position out, or move the log's directory away first.",
        )
    delivered_to = used_offset(pipeline)
    used = max(tail.offset, delivered_to.offset if delivered_to else 0)
    if offset is not None and offset < used:
        # Invariant 5: sinks that know an offset would take the new event for the old one.
        raise CheckpointError(
            f"offsets before {used} already name other events",
            where=masked_uri(pipeline.log_uri),
            fix="Leave the offset out.",
        )
    return Move(pipeline.name, None, current, Tail(used if offset is None else offset, to), afresh=True)


def move(pipeline: Pipeline, intended: Move, *, note: str) -> Checkpoint:
    """Raises `AlreadyRunning` if the pipeline runs."""
    to, uri, whole = intended.to, pipeline.log_uri, intended.sink is None
    with lock_stopped_pipeline(pipeline), closing(pipeline.build_state()) as state:
        spark = pipeline.spark_path if intended.sink is None else pipeline.spark_path_of(intended.sink)
        state.forget_spark_start(pipeline.name, intended.sink or "")
        shutil.rmtree(spark, ignore_errors=True)
        mark = read_delivered(uri)
        if whole and mark is not None and to.offset < mark.offset:
            acknowledge(uri, to)
        with closing(pipeline.build_checkpoints()) as store:
            stored = store.save(
                intended.key,
                Checkpoint(to.offset, to.position, note=note),
                expect=intended.current.version if intended.current else 0,
                force=True,
            )
        if intended.sink is not None:
            # Behind the save: killed in between, it still says that events were lost (invariant 7).
            state.forget_lost_ranges(pipeline.name, intended.sink)
        if whole:
            acknowledge(uri, to)
        if intended.afresh:
            Bookmark(open_store(uri), POSITION).put(to)
    return stored


def read_delivered(uri: str) -> Tail | None:
    """The log's mark of what the stream has delivered."""
    return Bookmark(open_store(uri), ACKNOWLEDGED).get()
