"""Goes on where the source no longer has what comes next (slot lost, server restored), or where capture cannot get past
one transaction. The pipeline is stopped meanwhile.

The gap is the operator's decision, never the program's (invariant 7): `confirm` is called with what is lost before
anything is changed, and raises to leave everything as it is. What the log still holds is delivered as ever; only
capture begins anew, from now on at a new slot, or after what was left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from tidemill.capture import stopped
from tidemill.capture.confirmed import forget_confirmed, read_confirmed
from tidemill.config import Pipeline
from tidemill.contracts import Notice
from tidemill.errors import ConfigError, PositionLost
from tidemill.log.entry import Tail
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.model.position import Offset, Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.ownership import lock_pipeline
from tidemill.service.positions import sink_positions, used_offset

Confirm = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Resynced:
    """Capture goes on `after` a position instead of `before`. `waiting` are events from before the gap that are still
    delivered first, by sink."""

    offset: Offset
    before: Position
    after: Position
    lost: str
    waiting: dict[str, int]


def capture_from_now(pipeline: Pipeline, confirm: Confirm) -> Resynced:
    """Everything between the end of the log and now is lost."""
    return _resync(pipeline, lambda before: _from_now(pipeline, before, confirm))


def pass_over(pipeline: Pipeline, through: Position | None, confirm: Confirm) -> Resynced:
    """What was committed up to the position `through` is lost; None: the one transaction at which capture stopped."""
    return _resync(pipeline, lambda before: _pass_over(pipeline, before, through, confirm))


def accept(pipeline: Pipeline, table: str, confirm: Confirm) -> list[Notice]:
    """The source forgets what it says of `table`, a name or a pattern; nothing else changes. What somebody copied is
    their affair. Returns what is accepted, `ConfigError` if nothing was said."""
    with lock_pipeline(pipeline), closing(_schemas(pipeline, create=False)) as schemas:
        confirm(f"{pipeline.name} forgets that rows of {table} may be missing or left over")
        with closing(pipeline.build_source()) as source:
            cleared = list(source.accept(table, schemas))
    if not cleared:
        raise ConfigError(
            f"nothing is said of {table}, so there is nothing to accept", where=pipeline.file,
            fix=f"Names are written as in the status, schema.name: tidemill doctor {pipeline.file} shows what is said.",
        )  # fmt: skip
    return cleared


def _resync(pipeline: Pipeline, jump: Callable[[Tail], tuple[str, Position]]) -> Resynced:
    with lock_pipeline(pipeline):
        log = LogWriter.open(pipeline.log_uri, pipeline.spec.log, base=used_offset(pipeline), ours=pipeline.owns_log)
        try:
            before = log.tail
            lost, now = jump(before)
            # An append without events: the log's next event is what commits after this position.
            log.append(Committed((), 0, ((0, now),)))
        finally:
            log.close()
        head = LogReader(pipeline.log_uri).head()
        waiting = {at.sink: at.lag(before.offset, head) for at in sink_positions(pipeline)}
    return Resynced(before.offset, before.position, now, lost, waiting)


def _from_now(pipeline: Pipeline, before: Tail, confirm: Confirm) -> tuple[str, Position]:
    gap = f"changes of {pipeline.name} after {before.position or 'the beginning'} and before now are never captured"
    with closing(_schemas(pipeline)) as schemas:
        with closing(pipeline.build_source()) as source:
            other = source.other_server(before.position, schemas) if before.position else ""
            confirm(f"{other}; if it is the right one: {gap}" if other else gap)
            now = source.renew(schemas)
        with closing(pipeline.build_state()) as state:
            forget_confirmed(state, pipeline.name, pipeline.state_path)
    if other:
        return f"changes of the server before after {before.position}, and of this one before {now} ({other})", now
    return f"changes between {before.position or 'the beginning'} and {now}", now


def _pass_over(pipeline: Pipeline, before: Tail, through: Position | None, confirm: Confirm) -> tuple[str, Position]:
    """What the source remembers of tables, and was told, stays true."""
    if not before.position:
        raise ConfigError(
            "nothing was captured yet, so there is nothing to go on after", where=pipeline.file,
            fix="start_position of the source says where it begins.",
        )  # fmt: skip
    with closing(_schemas(pipeline)) as schemas:
        if through is None and stopped.recall(schemas, before.position) is None:
            raise ConfigError(
                "capture did not stop at a transaction: what comes next may well be captured", where=pipeline.file,
                fix="Nothing was changed. Start the pipeline: where it cannot get past a transaction, it says so. To"
                " leave out what was committed up to a position, use --after POSITION.",
            )  # fmt: skip
        with closing(pipeline.build_source()) as source:
            if other := source.other_server(before.position, schemas):
                raise PositionLost(
                    other, where=pipeline.file,
                    fix="Check the dsn: our position, and any that you name, means nothing here. Nothing was changed.",
                )  # fmt: skip
            with closing(pipeline.build_state()) as state:
                confirmed = read_confirmed(state, pipeline.name, pipeline.state_path, before.offset)
            passage = source.pass_over(before.position, through, schemas, confirmed=confirmed)
        confirm(f"{passage.what} is never captured; everything after it is")
    return passage.what, passage.to


def _schemas(pipeline: Pipeline, *, create: bool = True) -> SchemaRegistry:
    return SchemaRegistry(pipeline.state_path / "registry.sqlite", create=create)
