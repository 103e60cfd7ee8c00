"""The ways out of a lost position (slot gone, server restored), and past one transaction that capture cannot read.

The pipeline is stopped meanwhile. What is lost is the operator's decision, never the program's (invariant 7): `confirm`
is called with it before anything is changed, and raises to leave everything as it is. What the log still holds is
delivered as ever; only capture begins anew, from now on at a new slot, or after what was left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from tidemill.capture import failed_transaction
from tidemill.capture.confirmed import read_confirmed
from tidemill.capture.open_log import open_log
from tidemill.capture.recovery import Confirm, NewBeginning, begin_anew, jump
from tidemill.config import Pipeline
from tidemill.contracts import Notice
from tidemill.errors import ConfigError, PositionLost
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.position import Offset, Position
from tidemill.schema.registry import SchemaRegistry, missing_registry
from tidemill.service.position.positions import sink_positions
from tidemill.service.run.ownership import lock_pipeline


@dataclass(frozen=True, slots=True)
class PipelineRecovery:
    """Capture goes on `after` a position instead of `before`. `waiting` are events from before the gap that are still
    delivered first, by sink. `snapshot`: the number of the copy that was begun, 0 for none."""

    offset: Offset
    before: Position
    after: Position
    lost: str
    waiting: dict[str, int]
    snapshot: int = 0


def copy_again(pipeline: Pipeline, confirm: Confirm) -> PipelineRecovery:
    """All captured tables are copied when the pipeline starts, and state sinks remove what the source no longer has."""
    return _begin(pipeline, lambda log: begin_anew(pipeline, log, confirm, copy=True))


def capture_from_now(pipeline: Pipeline, confirm: Confirm) -> PipelineRecovery:
    """Everything between the end of the log and now is lost."""
    return _begin(pipeline, lambda log: begin_anew(pipeline, log, confirm, copy=False))


def pass_over(pipeline: Pipeline, through: Position | None, confirm: Confirm) -> PipelineRecovery:
    """What was committed up to the position `through` is lost; None: the one transaction at which capture stopped."""
    return _begin(pipeline, lambda log: _pass_over(pipeline, log, through, confirm))


def accept(pipeline: Pipeline, table: str, confirm: Confirm) -> list[Notice]:
    """The source forgets what it says of `table`, a name or a pattern; nothing else changes. What somebody copied is
    their affair. Returns what is accepted, `ConfigError` if nothing was said."""
    with lock_pipeline(pipeline), closing(_schemas(pipeline)) as schemas:
        confirm(f"{pipeline.name} forgets that rows of {table} may be missing or left over")
        with closing(pipeline.build_source()) as source:
            cleared = list(source.accept(table, schemas))
    if not cleared:
        raise ConfigError(
            f"nothing is said of {table}, so there is nothing to accept", where=pipeline.file,
            fix=f"Names are written as in the status, schema.name: tidemill doctor {pipeline.file} shows what is said.",
        )  # fmt: skip
    return cleared


def _begin(pipeline: Pipeline, begin: Callable[[LogWriter], NewBeginning]) -> PipelineRecovery:
    with lock_pipeline(pipeline):
        with closing(pipeline.build_state()) as state, closing(open_log(pipeline, state, anew=True)) as log:
            before = log.tail
            done = begin(log)
        head = LogReader(pipeline.log_uri).head()
        waiting = {at.sink: at.lag(before.offset, head) for at in sink_positions(pipeline)}
    return PipelineRecovery(before.offset, before.position, done.after, done.lost, waiting, done.snapshot)


def _pass_over(pipeline: Pipeline, log: LogWriter, through: Position | None, confirm: Confirm) -> NewBeginning:
    """What the source remembers of tables, and the confirmed position, stay true."""
    before = log.tail
    if not before.position:
        raise ConfigError(
            "nothing was captured yet, so there is nothing to go on after", where=pipeline.file,
            fix="start_position of the source says where it begins.",
        )  # fmt: skip
    with closing(pipeline.open_registry()) as schemas:
        if through is None and failed_transaction.recall(schemas, before.position) is None:
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
    jump(log, passage.to)
    return NewBeginning(passage.to, passage.what)


def _schemas(pipeline: Pipeline) -> SchemaRegistry:
    """`RegistryError` if it never ran."""
    if (found := pipeline.find_registry()) is None:
        raise missing_registry(str(pipeline.registry_path))
    found.close()
    return pipeline.open_registry()
