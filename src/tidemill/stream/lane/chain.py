"""Runs a pipeline's processors over one lane's share of a batch, in a Spark worker (deliver.py).

What every processor needs and none does by itself: which rows it sees, that the others keep their place, what becomes
of events that it fails on, whether what it returns are still the same events, and the structure they come with.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill import registry
from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ErrorData, ProcessingError, TidemillError, from_data, is_retryable
from tidemill.model.block import Block, Op
from tidemill.model.delivery import ProcessorCount
from tidemill.model.derived import MOST_OF_ONE, unfit_images
from tidemill.model.keyhash import key_hashes
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.model.tablenames import TableNames
from tidemill.stream.lane.rows import in_order, stack, unsent, without_images
from tidemill.stream.schema.structures import Known, Structures, conform, digest, name_structure
from tidemill.telemetry.context import bind
from tidemill.telemetry.events import warn

Mask = npt.NDArray[np.bool_]
_HELD_BYTES = 128 << 20
_ROW_OPS = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE, "read": Op.READ}


@dataclass(frozen=True, slots=True)
class EventFailure:
    """An event that is to become a dead letter, and the processor that failed on it."""

    processor: str
    reason: str


class Chain:
    """The processors of a pipeline in one worker, kept between batches. One thread at a time.

    For a trial: `only` the processor of this id runs, and events that fail are as `on_error` says. Neither changes what
    was learned of structures: that is kept by the document's own settings."""

    def __init__(
        self, specs: Sequence[tuple[str, Mapping[str, Any]]], source_id: str, *, only: str | None = None,
        on_error: str | None = None,
    ) -> None:  # fmt: skip
        self._source_id, self._on_error = source_id, on_error
        self._members: list[BaseProcessor[Any]] = []
        chosen = [number for number, (_, config) in enumerate(specs) if only in (None, config["id"])]
        self._specs = [specs[number] for number in chosen]
        self._digests = [digest(specs[: number + 1]) for number in chosen]

    def begin(self, known: Known) -> ChainRun:
        """For one share. `known` is what the driver knows of learned structures: nothing that this worker met before
        counts beside it, because other workers did not meet it."""
        if not self._members:
            self._members = [self._build(kind, config) for kind, config in self._specs]
        stages = [
            _Stage(member, Structures(stage, known), stage)
            for member, stage in zip(self._members, self._digests, strict=True)
        ]
        return ChainRun(stages)

    @property
    def members(self) -> Sequence[BaseProcessor[Any]]:
        """In order; none before the first `begin`."""
        return tuple(self._members)

    @property
    def types(self) -> Sequence[str]:
        """Of the members, in order."""
        return tuple(kind for kind, _ in self._specs)

    def close(self) -> None:
        members, self._members = self._members, []
        for member in members:
            try:
                member.close()
            except Exception as error:  # noqa: BLE001  a processor that failed may fail to close as well
                warn("stream.processor_not_closed", processor=member.config.id, error=type(error).__name__)

    def _build(self, kind: str, config: Mapping[str, Any]) -> BaseProcessor[Any]:
        member: type[BaseProcessor[Any]] = registry.load("processors", kind)
        given = dict(config) | ({"on_error": self._on_error} if self._on_error is not None else {})
        made = member(member.Config.model_validate(given))
        made.source_id = self._source_id
        return made


class ChainRun:
    """One pass. `failures`, `counts` and `learned` hold when its blocks were all taken."""

    def __init__(self, stages: Sequence[_Stage]) -> None:
        self._stages = stages

    def blocks(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for stage in self._stages:
            blocks = stage.run(blocks)
        return blocks

    def structure(self, table: Table) -> Table:
        """The one that rows of `table` leave the chain with, as far as it is known."""
        for stage in self._stages:
            table = stage.structure(table)
        return table

    def report(self) -> None:
        """Invariant 7: says, once for the share, what was dropped."""
        for stage in self._stages:
            if stage.count.skipped:
                warn("processor.events_skipped", processor=stage.count.processor, events=stage.count.skipped,
                     reason=stage.first_skipped)  # fmt: skip

    @property
    def counts(self) -> list[ProcessorCount]:
        return [stage.count for stage in self._stages]

    @property
    def failures(self) -> dict[Offset, EventFailure]:
        return {
            offset: EventFailure(stage.count.processor, reason)
            for stage in self._stages
            for offset, reason in stage.dead.items()
        }

    @property
    def learned(self) -> Known:
        """What the driver has to know before anything is written; empty if it knows everything."""
        return {key: tables for stage in self._stages if stage.grew for key, tables in stage.known.items()}


class _Stage:
    """One processor in one pass."""

    def __init__(self, member: BaseProcessor[Any], structures: Structures, digest: str) -> None:
        config: ProcessorConfig = member.config
        self._member, self._config, self._digest, self._structures = member, config, digest, structures
        self._names = TableNames(config.tables)
        self._ops = [int(_ROW_OPS[name]) for name in (config.ops or _ROW_OPS)]
        self._declared: dict[object, Table | None] = {}
        member.learned = lambda table: structures.of(table.full_name, table)
        self.count = ProcessorCount(config.id)
        self.dead: dict[Offset, str] = {}
        self.first_skipped = ""

    @property
    def grew(self) -> bool:
        return self._structures.grew

    @property
    def known(self) -> Known:
        return self._structures.known

    def run(self, blocks: Iterator[Block]) -> Iterator[Block]:
        if self._member.holds:
            yield from self._run_held(blocks)
            return
        for block in blocks:
            mine = self._selects(block)
            if mine is None or not mine.any():
                yield self._pass(block, matches=mine is not None)
            elif mine.all():
                yield from self._process(block)
            else:
                made = list(self._process(block.take(np.flatnonzero(mine))))  # first: it may teach the structure
                rest = self._pass(block.take(np.flatnonzero(~mine)), matches=True)
                yield from _merge([*made, rest])

    def _run_held(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """All rows up to the first of a table that is none (DDL, TRUNCATE), or to a bound: what follows must not
        overtake it, and memory must not grow with a transaction."""
        held: list[tuple[Block, bool]] = []
        size = 0
        for block in blocks:
            mine = self._selects(block)
            whole = mine is not None and bool(mine.all())
            held.append((block, whole))
            size += int(block.batch.nbytes)
            if (mine is not None and not whole) or size >= _HELD_BYTES:
                yield from self._release(held)
                held, size = [], 0
        yield from self._release(held)

    def _release(self, held: Sequence[tuple[Block, bool]]) -> Iterator[Block]:
        made = self._time((block for block, mine in held if mine), None)
        for block, mine in held:
            out = next(made, None) if mine else block
            if out is None:
                raise _about(self._config, "it returned fewer blocks than it was given")
            if out.rows:
                yield out
        if next(made, None) is not None:
            raise _about(self._config, "it returned more blocks than it was given")

    def structure(self, table: Table) -> Table:
        found = self._structure(table) if self._names.match(table) and table.columns else None
        return found or table

    def _selects(self, block: Block) -> Mask | None:
        """Which rows the processor sees; None: it does not see this table."""
        if not self._names.match(block.table):
            return None
        return np.isin(block.batch.column("op").to_numpy(), self._ops)

    def _pass(self, block: Block, *, matches: bool) -> Block:
        """Rows that the processor does not see. Those of a table that it does see get the structure that it gives."""
        if not matches or not block.table.columns:
            return block
        table = self._structure(block.table)
        if table is None or table is block.table:
            return block
        ops = block.batch.column("op").to_numpy()
        if not np.isin(ops, [int(op) for op in _ROW_OPS.values()]).any():
            return without_images(block, table)
        fitted, bad = conform(block, table)
        if bad:
            raise _about(self._config, f"event {min(bad)}: {bad[min(bad)]}")
        return unsent(fitted, block.table)

    def _structure(self, table: Table) -> Table | None:
        """Which one rows of it get; None while only the rows could tell."""
        if table.lineage not in self._declared:
            derived = self._member.derive(table)
            self._declared[table.lineage] = None if derived is None else name_structure(derived, table, self._digest)
        declared = self._declared[table.lineage]
        return declared if declared is not None else self._structures.of(table.full_name, table)

    def _process(self, block: Block) -> Iterator[Block]:
        """What becomes of the block, without the events that failed."""
        while block.rows:
            try:
                made = list(self._time(iter((block,)), block))
                break
            except ProcessingError as error:
                if not error.reasons:
                    raise
                block = self._without_failed(block, error)
        else:
            return
        yield from made

    def _time(self, blocks: Iterator[Block], of: Block | None) -> Iterator[Block]:
        began, seen, out = time.perf_counter(), 0, 0

        def count_rows() -> Iterator[Block]:
            nonlocal seen
            for block in blocks:
                seen += block.rows
                yield block

        try:
            with bind(stage="process", processor=self._config.id):
                for made in self._make(self._member.process(count_rows()), of):
                    out += made.rows
                    yield made
        except ProcessingError:
            seen = out = 0  # it is run again without what it named
            raise
        except TidemillError as error:
            if is_retryable(error):
                raise
            raise _about(self._config, error.what, error.fix) from error
        except Exception as error:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            raise _about(self._config, f"{kind} was not expected") from error
        finally:
            self.count.seconds += time.perf_counter() - began
            self.count.events_in += seen
            self.count.events_out += out

    def _make(self, blocks: Iterator[Block], of: Block | None) -> Iterator[Block]:
        if of is not None and self._member.checked:
            if pieces := [block for block in blocks if block.rows]:
                yield self._check(pieces, of)
            return
        for block in blocks:
            if block.rows or self._member.holds:
                source = of.table if of is not None else block.table
                table = None if block.table is source else self._structure(source)
                yield block if table is None else Block(table, block.batch)

    def _check(self, pieces: Sequence[Block], of: Block) -> Block:
        """What was made of a block, as sinks may rely on it: same events, in order, keys kept, the structure that it
        always has. All pieces in one: events that were made of one event are numbered together."""
        source = of.table
        for piece in pieces:
            _check_identity(piece, of, self._config)
        declared = self._structure(source)
        if declared is None or self._member.derive(source) is None:
            for piece in pieces:
                self._structures.learn(source.full_name, piece.table, source)
            declared = self._structures.of(source.full_name, source)
            assert declared is not None
        bad: dict[int, str] = {}
        fitted = []
        for piece in pieces:
            fits, wrong = conform(piece, declared)
            fitted.append(fits)
            bad |= wrong
        whole = stack(fitted)
        bad |= _too_many(whole) | unfit_images(whole, of)
        if bad:
            raise ProcessingError(bad)
        whole = in_order(whole)
        if not self._config.changes_keys and (bad := _moved_keys(whole, of)):
            raise ProcessingError(bad)
        return whole

    def _without_failed(self, block: Block, error: ProcessingError) -> Block:
        offsets = block.offsets()
        failed = np.isin(offsets, np.array(sorted(error.reasons), np.uint64))
        if not failed.any():
            raise _about(self._config, "it names events that it was not given") from error
        match self._config.on_error:
            case "halt":
                raise ProcessingError(
                    error.reasons,
                    where=f'processor "{self._config.id}"',
                    fix=error.fix or "Mend the processor or the event; or set on_error to dead_letter or skip.",
                ) from error
            case "dead_letter":
                self.dead |= {int(offset): error.reasons[int(offset)] for offset in np.unique(offsets[failed])}
                self.count.dead_letters = len(self.dead)
            case "skip":
                self.count.skipped += len(np.unique(offsets[failed]))
                self.first_skipped = self.first_skipped or error.reasons[min(error.reasons)]
        return block.take(np.flatnonzero(~failed))


def _check_identity(made: Block, of: Block, config: ProcessorConfig) -> None:
    if made.table.full_name != of.table.full_name:
        raise _about(config, f"it turned rows of {of.table.full_name} into rows of {made.table.full_name}")
    if not np.array_equal(made.offsets(), of.offsets()) and not np.isin(made.offsets(), of.offsets()).all():
        raise _about(config, "it returned events that it was not given")


def _moved_keys(made: Block, of: Block) -> dict[int, str]:
    if not of.table.key:
        return {}
    reason = "it changes the event's key, which needs changes_keys: true"
    if len(made.table.key) != len(of.table.key):
        return dict.fromkeys(made.offsets().tolist(), reason)
    before, after = key_hashes(of, of.table.key), key_hashes(made, made.table.key)
    if before is None or after is None:
        return {}
    if np.array_equal(made.offsets(), of.offsets()) and np.array_equal(before, after):
        return {}
    odd = np.uint64(0x9E3779B97F4A7C15)  # an event may have become several already, with keys of their own
    same = np.isin(after ^ (made.offsets() * odd), before ^ (of.offsets() * odd))
    return dict.fromkeys(made.offsets()[~same].tolist(), reason)


def _too_many(made: Block) -> dict[int, str]:
    """Events that became more than numbers can name."""
    if made.rows <= MOST_OF_ONE:
        return {}
    offsets, counts = np.unique(made.offsets(), return_counts=True)
    reason = f"it became more than {MOST_OF_ONE} events"
    return dict.fromkeys(offsets[counts > MOST_OF_ONE].tolist(), reason)


def _merge(blocks: Collection[Block]) -> Iterator[Block]:
    """Rows of one table with one structure, in order of their offsets, in one block."""
    there = [block for block in blocks if block.rows]
    yield in_order(stack(there))


def _about(config: ProcessorConfig, what: str, fix: str = "") -> TidemillError:
    """An error of the processor itself and not of an event."""
    fix = fix or "Nothing is lost: mend the processor, then start the pipeline again."
    data: ErrorData = {"code": ProcessingError.code, "what": what, "where": f'processor "{config.id}"', "fix": fix}
    return from_data(data, ProcessingError)
