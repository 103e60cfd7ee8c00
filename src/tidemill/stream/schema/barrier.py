"""The barrier at a schema change: everything before it is delivered, then every sink makes the change, then rows go on.

The loop calls `cross` in the driver before the job of each batch: all batches before it are delivered by then. It finds
structures in the batch that the group's sinks do not have yet, asks the policies and, where the gate is closed, an
operator, and lets each sink apply its plan once. Lanes then find it done. A sink that meets a structure first all the
same, because a worker comes late or processors stand in between, still follows it by itself.

Each change is in the state store before anything is done about it, and each step may be repeated: killed anywhere, the
next start goes on with the same change and the same decision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tidemill import registry
from tidemill.contracts import Sink
from tidemill.contracts.schema_change_store import ChangeStatus, Decision, SchemaChangeStore, SinkOutcome, StoredChange
from tidemill.errors import BarrierNotReached, SchemaChangeNotApplied, TidemillError, is_retryable
from tidemill.log import BlockRef, LogReader
from tidemill.log.requeued import requeued_for
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.clock import utc_now
from tidemill.model.position import Offset
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind
from tidemill.retry import RetryPolicy
from tidemill.schema.changes import change_between, with_unseen
from tidemill.schema.diff import diff
from tidemill.schema.policy import ChangePolicy, ChangeVerdict, list_kinds
from tidemill.schema.view import NEVER_IGNORED, TableView
from tidemill.stream.batch.failures import ours
from tidemill.stream.schema.decisions import POLICY, halt_error, is_expired, list_begun, stored_change, verdict_after
from tidemill.stream.schema.known_table import KnownTable
from tidemill.stream.schema.quarantine import QuarantineKeeper
from tidemill.telemetry.events import emit, warn
from tidemill.telemetry.failpoints import failpoint

_LOOK_SECONDS = 0.25
_KEPT_VIEWS = 20


@dataclass(frozen=True, slots=True)
class BarrierSettings:
    """`key` names the group; `sinks` are its sinks, as (type, settings). With `processed` rows come to the sinks with
    other columns than captured, so that only a delivery knows what is to be done."""

    pipeline: str
    source: str
    key: str
    sinks: Sequence[tuple[str, dict[str, Any]]]
    policy: ChangePolicy = field(default_factory=ChangePolicy)
    processed: bool = False


@dataclass(frozen=True, slots=True)
class PreviewedChange:
    change: SchemaChange
    verdict: ChangeVerdict
    plans: dict[str, SinkOutcome]


class SchemaBarrier:
    """Of one group of sinks. For the thread of its loop. `on_wait` is called with the change that waits for an
    operator, and with None when the wait is over."""

    def __init__(
        self,
        store: SchemaChangeStore,
        log: LogReader,
        settings: BarrierSettings,
        stopping: threading.Event,
        on_wait: Callable[[StoredChange | None], None] = lambda change: None,
    ) -> None:
        self._store, self._log, self._settings = store, log, settings
        self._stopping, self._on_wait = stopping, on_wait
        self._known: dict[str, KnownTable] | None = None
        self._start: Offset = 0  # of the batch
        self._quarantined = QuarantineKeeper(store, settings.pipeline, watched=settings.policy.quarantines)

    @property
    def seen(self) -> dict[str, Any]:
        """What lanes have to know, as `Plan` has it."""
        return {"views": self.views, "held": self._quarantined.held}

    @property
    def views(self) -> dict[str, dict[str, list[Any]]]:
        """For lanes: by sink and table, [offset, view] of those that do not see it whole."""
        found: dict[str, dict[str, list[Any]]] = {}
        for name, table in self._load().items():
            for sink, mine in table.views.items():
                found.setdefault(sink, {})[name] = [[since, view.to_dict()] for since, view in mine]
        return found

    def cross(self, start: Offset, end: Offset) -> bool:
        """Before the batch's job. False if somebody wants to stop meanwhile; the batch must not be delivered then.
        `SchemaChangeHalted` or `SchemaChangeNotApplied` where the pipeline must not go on."""
        self._quarantined.refresh()
        self._start = start
        for ref, block in self._new_structures(start, end):
            known = self._load().get(block.table.full_name)
            for change in self._changes(ref.first, block, known):
                if not self._pass(change, known, requeued_for(ref), block):
                    return False
                known = self._load().get(block.table.full_name)
        return True

    def preview(self, start: Offset, end: Offset) -> Iterator[PreviewedChange]:
        """The changes that `cross` would make, each with what every sink would do as it is now. Changes nothing."""
        known = self._known = dict(self._load())
        for ref, block in self._new_structures(start, end):
            name = block.table.full_name
            for change in self._changes(ref.first, block, known.get(name), keep=False):
                verdict = self._settings.policy.judge(change)
                if released := self._quarantined.find_released(change, known.get(name), requeued_for(ref)):
                    verdict = verdict_after(released, change, verdict)
                yield PreviewedChange(change, verdict, self._plans(change, known.get(name), verdict))
                if change.after is not None:
                    before = known.get(name) or KnownTable(change.after, ref.first)
                    known[name] = before.follow(change.after, ref.first, self._names, verdict.ignored)
            views = known[name].views if name in known else {}
            known[name] = KnownTable(block.table, ref.first, views)

    def overdue(self, end: Offset, seconds: float) -> bool:
        """Whether the batch before `end` has been held up for too long, with a schema change right after it."""
        if seconds < self._settings.policy.flush_seconds:
            return False
        return bool(self._log.barrier_at(end) & Barrier.SCHEMA_CHANGE)

    def not_reached(self, problem: TidemillError, end: Offset) -> BarrierNotReached:
        return BarrierNotReached(
            f"a schema change waits at offset {end}, and what is before it was not delivered within"
            f" {self._settings.policy.flush_seconds:g} seconds: {problem.what}",
            where=problem.where or f"pipeline {self._settings.pipeline}",
            fix="Nothing is lost. Mend the sink and start the pipeline again, or raise ddl.flush_timeout_seconds.",
        )

    # ---------------------------------------------------------------- what changed

    def _load(self) -> dict[str, KnownTable]:
        if self._known is None:
            name, key = self._settings.pipeline, self._settings.key
            # A sink that got a position of its own was with those that lead before.
            kept = self._store.structures(name, key) or self._store.structures(name, name)
            self._known = {name: KnownTable.from_dict(document) for name, document in kept.items()}
        return self._known

    def _new_structures(self, start: Offset, end: Offset) -> Iterator[tuple[BlockRef, Block]]:
        """Blocks whose structure is not the one that their table has at that place. The index tells by fingerprints; at
        a barrier of the source the blocks are read, because a column may have been replaced by its like."""
        for entry in self._log.between(start, end):
            flagged = bool(entry.barrier & (Barrier.SCHEMA_CHANGE | Barrier.UNNAMED))
            for ref in sorted(entry.refs(start, end), key=lambda ref: ref.first):
                known = self._load().get(ref.table)
                if known is not None and (
                    ref.first < known.since or (known.source.fingerprint == ref.fingerprint and not flagged)
                ):
                    continue
                if self._quarantined.keeps_back(ref):
                    continue
                block = self._log.read(ref)
                if block.table.version and block.table.columns:  # not of messages, nor of tables that nobody described
                    yield ref, block

    def _changes(
        self, offset: Offset, block: Block, known: KnownTable | None, *, keep: bool = True
    ) -> Iterator[SchemaChange]:
        """Without `keep` a structure that is met first is only told."""
        table, source = block.table, self._settings.source
        statements = block.column("ddl")
        documents = [orjson.loads(text) for text in statements.to_pylist() if text] if statements is not None else []
        text = "; ".join(document["text"] for document in documents if document["text"])
        if documents and documents[-1]["kind"] == "drop":
            kinds = frozenset({SchemaChangeKind.DROP_TABLE})
            yield SchemaChange(source, offset, kinds, known.source if known else table, None, text)
        elif known is None:
            change = with_unseen(change_between(source, offset, None, table, text), documents)
            verdict = self._settings.policy.judge(change)
            if documents or (table.version == 1 and verdict.waits):
                yield change
            elif keep:  # nobody created it just now: it was there, and a delivery makes it at the sinks
                self._keep({table.full_name: KnownTable(table, offset)})
        elif known.source.lineage != table.lineage or documents:
            change = with_unseen(change_between(source, offset, known.source, table, text), documents)
            if change.kinds:
                yield change
            elif keep and known.source.lineage != table.lineage:  # order of columns, replica identity: nobody's concern
                views = {
                    sink: [*mine, (offset, mine[-1][1].follow(table, frozenset()))]
                    for sink, mine in known.views.items()
                }
                self._keep({table.full_name: KnownTable(table, offset, views)})

    # ---------------------------------------------------------------- what becomes of it

    def _pass(self, change: SchemaChange, known: KnownTable | None, requeued: int, block: Block) -> bool:
        """`requeued`: the change stands in rows that were appended again for the one of this number; 0 if not."""
        policy, name = self._settings.policy, self._settings.pipeline
        verdict = policy.judge(change)
        released = self._quarantined.find_released(change, known, requeued)
        stored = released or self._store.record(name, stored_change(change, block))
        failpoint("ddl.recorded")
        if stored.quarantine is not None and released is None:
            self._quarantined.reload()  # another group came here before; the rows are met again at the log's end
            return True
        if stored.decision is Decision.PENDING:
            if not verdict.waits:
                stored = self._store.decide(name, stored.number, Decision.APPROVED, POLICY, "", utc_now())
            else:
                self._note_plans(stored, change, known, verdict)
                failpoint("ddl.planned")
                if verdict.halting:
                    raise halt_error(stored, name, f"the policy of {list_kinds(verdict.halting)} is halt")
                if verdict.quarantined:
                    self._quarantined.begin(stored)
                    failpoint("ddl.quarantined")
                    warn("ddl.quarantined", number=stored.number, table=stored.table, kinds=",".join(stored.kinds),
                         offset=stored.offset)  # fmt: skip
                    return True
                decided = self._wait(stored)
                if decided is None:
                    return False
                stored = decided
        failpoint("ddl.decided")
        ignores = policy.ignores_rejected or released is not None
        if stored.decision is Decision.REJECTED and (not ignores or change.kinds & NEVER_IGNORED):
            raise halt_error(stored, name, f"{stored.actor} rejected it")
        self._make(stored, change, known, verdict_after(stored, change, verdict))
        return True

    def _wait(self, stored: StoredChange) -> StoredChange | None:
        """The change once it is decided; None if somebody wants to stop before."""
        name = self._settings.pipeline
        emit("ddl.waiting", number=stored.number, table=stored.table, kinds=",".join(stored.kinds))
        self._on_wait(self._store.change(name, stored.number) or stored)
        try:
            while True:
                found = self._store.change(name, stored.number)
                if found is not None and found.decision is not Decision.PENDING:
                    emit("ddl.decided", number=found.number, table=found.table, decision=str(found.decision),
                         actor=found.actor, reason=found.reason)  # fmt: skip
                    return found
                if is_expired(stored, limit := self._settings.policy.decision_seconds):
                    raise halt_error(stored, name, f"nobody decided on it within {limit:g} seconds")
                if self._stopping.wait(_LOOK_SECONDS):
                    return None
        finally:
            self._on_wait(None)

    def _make(
        self, stored: StoredChange, change: SchemaChange, known: KnownTable | None, verdict: ChangeVerdict
    ) -> None:
        """Every sink makes the change, or keeps its view of the table; then it is kept which."""
        if change.after is None:
            for sink in self._names:
                self._note(stored, sink, SinkOutcome((), ChangeStatus.APPLIED, "", utc_now()))
            return
        before = known or KnownTable(change.after, change.offset)
        views = dict(before.views)
        for kind, config in self._settings.sinks:
            sink = str(config["id"])
            seen = before.shared_view() if self._settings.processed else before.view(sink)
            view = self._make_at(stored, change, seen, verdict, kind, config)
            mine = views.get(sink, [])
            if mine or not view.is_whole:
                views[sink] = self._forget_views([*mine, (change.offset, view)])
        failpoint("ddl.applied")
        self._keep({change.after.full_name: KnownTable(change.after, change.offset, views)})
        failpoint("ddl.kept")
        emit("ddl.passed", number=stored.number, table=stored.table, kinds=",".join(stored.kinds), offset=change.offset)

    def _forget_views(self, views: list[tuple[Offset, TableView]]) -> list[tuple[Offset, TableView]]:
        """Without the oldest of many, except those that rows of this batch may have: it may be one transaction that
        changes a table again and again."""
        while len(views) > _KEPT_VIEWS and views[1][0] <= self._start:
            views = views[1:]
        return views

    def _make_at(
        self, stored: StoredChange, change: SchemaChange, seen: TableView, verdict: ChangeVerdict, kind: str,
        config: dict[str, Any], refused: str = "",
    ) -> TableView:  # fmt: skip
        """The view that the sink has then. `refused`: it would not make kinds that were only tried, and why."""
        assert change.after is not None
        sink = str(config["id"])
        created = change.before is None  # by the first delivery: a table without rows is nobody's concern yet
        mine, view = _as_seen(change, seen, verdict)
        ignored = bool(change.kinds) and change.kinds <= verdict.ignored
        by_hand = stored.decision is Decision.MADE
        if created or ignored or self._settings.processed:
            status = ChangeStatus.IGNORED if ignored else ChangeStatus.APPLIED
            planned = () if by_hand else self._planned_statements(stored, sink)
            self._note(stored, sink, SinkOutcome(planned, status, refused, utc_now()))
            return view
        statements: tuple[str, ...] = ()
        try:
            if by_hand:
                self._try(lambda made: made.adopt(mine), kind, config)
            else:
                statements = self._plan_of(mine, kind, config)
                if statements:
                    self._note(stored, sink, SinkOutcome(statements, at=utc_now()))
                else:  # perhaps because they ran before somebody was killed, or another sink failed
                    statements = list_begun(stored, sink)
                self._try(lambda made: made.apply(mine), kind, config)
            failpoint("ddl.applied_at_sink")
        except TidemillError as error:
            if self._stopping.is_set() and is_retryable(error):
                raise
            if not verdict.tried or is_retryable(error):
                self._note(stored, sink, SinkOutcome(statements, ChangeStatus.FAILED, error.what, utc_now()))
                raise SchemaChangeNotApplied(
                    f'sink "{sink}" could not make schema change {stored.number} of {stored.table}'
                    f" ({list_kinds(change.kinds)}): {error.what}",
                    where=error.where or f"pipeline {self._settings.pipeline}, offset {change.offset}",
                    fix=f"{error.fix or 'Mend that at the destination.'} Then start the pipeline again: nothing after"
                    " the change was delivered. Or make it by hand, or set another policy under ddl.",
                ) from error
            warn("ddl.not_evolved", number=stored.number, table=stored.table, sink=sink, error=error.what)
            # The other kinds of the change are made: the next change may come before a lane meets this structure.
            rest = replace(verdict, ignored=verdict.ignored | verdict.tried, tried=frozenset())
            return self._make_at(stored, change, seen, rest, kind, config, refused=error.what)
        self._note(stored, sink, SinkOutcome(statements, ChangeStatus.APPLIED, refused, utc_now()))
        failpoint("ddl.noted_of_sink")
        return view

    def _note_plans(
        self, stored: StoredChange, change: SchemaChange, known: KnownTable | None, verdict: ChangeVerdict
    ) -> None:
        for sink, outcome in self._plans(change, known, verdict).items():
            self._note(stored, sink, outcome)

    def _plans(self, change: SchemaChange, known: KnownTable | None, verdict: ChangeVerdict) -> dict[str, SinkOutcome]:
        """What each sink would do, for who decides. A plan that cannot be made says why."""
        found = {}
        for kind, config in self._settings.sinks:
            sink, outcome = str(config["id"]), SinkOutcome()
            if not self._settings.processed and change.after is not None and not change.kinds <= verdict.ignored:
                try:
                    seen = (known or KnownTable(change.after, change.offset)).view(sink)
                    outcome = SinkOutcome(self._plan_of(_as_seen(change, seen, verdict)[0], kind, config))
                except TidemillError as error:
                    outcome = SinkOutcome(error=error.what)
            found[sink] = outcome
        return found

    def _plan_of(self, change: SchemaChange, kind: str, config: dict[str, Any]) -> tuple[str, ...]:
        found: tuple[str, ...] = self._try(lambda made: made.plan(change).statements, kind, config)
        return found

    def _try(self, step: Callable[[Sink], Any], kind: str, config: dict[str, Any]) -> Any:
        """With a sink of its own, again and again while that is worth it, for `flush_seconds`."""

        def once() -> Any:
            member = registry.load("sinks", kind)
            with closing(member(member.Config.model_validate(config))) as made:
                return step(made)

        tries = RetryPolicy(most=5.0, seconds=self._settings.policy.flush_seconds).begin(self._stopping)
        while True:
            try:
                return once()
            except Exception as error:  # sinks bring errors of any library; the table in errors.py judges
                problem = ours(error)
                if not is_retryable(problem) or not tries.pause():
                    raise problem from error

    def _planned_statements(self, stored: StoredChange, sink: str) -> tuple[str, ...]:
        known = stored.outcomes.get(sink)
        return known.statements if known else ()

    def _note(self, stored: StoredChange, sink: str, outcome: SinkOutcome) -> None:
        self._store.note(self._settings.pipeline, stored.number, sink, outcome)

    def _keep(self, tables: dict[str, KnownTable]) -> None:
        documents = {name: table.to_dict() for name, table in tables.items()}
        self._store.keep_structures(self._settings.pipeline, self._settings.key, documents)
        self._load().update(tables)

    @property
    def _names(self) -> list[str]:
        return [str(config["id"]) for _, config in self._settings.sinks]


def _as_seen(change: SchemaChange, seen: TableView, verdict: ChangeVerdict) -> tuple[SchemaChange, TableView]:
    """The change as a sink makes it that sees so much of the table, and what it sees of it then."""
    assert change.after is not None
    if change.before is None:
        return change, TableView.whole(change.after)
    view = seen.follow(change.after, verdict.ignored)
    # A source may tell every name that a column ever had; what is to be renamed here is what this change renamed.
    renamed = tuple((old.name, new.name) for old, new in diff(seen.table, view.table).renamed)
    return replace(change, before=seen.table, after=replace(view.table, renamed=renamed)), view
