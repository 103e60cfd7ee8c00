"""Opens a pipeline's log for writing: by its capture process, and by who begins capture anew for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from tidemill.capture.snapshot import live_ids
from tidemill.config.pipeline import Pipeline
from tidemill.contracts import StateStore
from tidemill.log.entry import Tail
from tidemill.log.writer import LogWriter
from tidemill.model.delivery import key_of
from tidemill.model.position import Offset


def open_log(
    pipeline: Pipeline, state: StateStore, guard: Callable[[], None] = lambda: None, *, anew: bool = False
) -> LogWriter:
    """What a snapshot has staged stays. An empty log begins where the source resumes after the checkpoint, so that
    offsets keep their meaning (invariant 5). With `anew` the source does not resume there, nothing comes again, and it
    begins after every offset that was used."""
    base, delivered = (used_offset(pipeline), None) if anew else _checkpoint(pipeline)
    return LogWriter.open(
        pipeline.log_uri, pipeline.spec.log, base=base, delivered=delivered, ours=pipeline.owns_log,
        staged=live_ids(state.snapshots, pipeline.name).__contains__, guard=guard,
    )  # fmt: skip


def _checkpoint(pipeline: Pipeline) -> tuple[Tail | None, Offset | None]:
    with closing(pipeline.build_checkpoints()) as store:
        saved = store.load(pipeline.name)
    return (Tail(saved.begins, saved.position), saved.offset) if saved else (None, None)


def used_offset(pipeline: Pipeline) -> Tail | None:
    """The first offset that names no event yet (invariant 5), and where the source resumes after the checkpoint; None
    if nothing was delivered. A sink that the checkpoint does not wait for may be further than the pipeline's own."""
    keys = [pipeline.name, *(key_of(pipeline.name, sink.config.id) for sink in pipeline.spec.sinks)]
    with closing(pipeline.build_checkpoints()) as store:
        saved = [found for found in map(store.load, keys) if found is not None]
    return Tail(max(checkpoint.offset for checkpoint in saved), saved[0].position) if saved else None
