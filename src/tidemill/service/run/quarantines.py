"""Tables in quarantine while their pipeline runs: what the log must keep for them, and what status says (ADR 53)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tidemill.config import Pipeline
from tidemill.contracts import StateStore
from tidemill.contracts.schema_change_store import Decision, StoredChange
from tidemill.errors import TidemillError
from tidemill.log.reader import LogReader
from tidemill.log.requeued import requeued_for
from tidemill.model.clock import utc_now
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind
from tidemill.model.snapshot import TableState
from tidemill.model.table import Table
from tidemill.schema.policy import list_kinds
from tidemill.service.run.status import QuarantinedTable
from tidemill.service.schema.barriers import policy_of_changes
from tidemill.stream.schema.decisions import POLICY
from tidemill.telemetry import events

_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _WaitingRows:
    """What waits of a table between two offsets."""

    start: Offset
    end: Offset
    events: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _LastLook:
    """The last look at the store, and at the log."""

    at: float = 0.0
    tables: tuple[QuarantinedTable, ...] = ()
    notices: tuple[dict[str, str], ...] = ()
    counts: dict[int, _WaitingRows] = field(default_factory=dict)


class RunQuarantines:
    """`lower` and `delivered` are for any thread, `look` and `notices` for the supervisor's."""

    def __init__(self, pipeline: Pipeline, state: StateStore) -> None:
        self._pipeline, self._log = pipeline, LogReader(pipeline.log_uri)
        self._store, self._snapshots = state.schema_changes, state.snapshots
        self._seen = _LastLook()
        self._begun = False

    def _begin(self) -> None:
        """Forgets those of which the log has no row any more, and lets those go that no policy keeps any more."""
        name = self._pipeline.name
        head = self._log.head()
        ddl, source = self._pipeline.spec.ddl, self._pipeline.spec.source.config
        policy = policy_of_changes(ddl, announced=source.announces_changes)
        for each in self._store.quarantines(name):
            if each.ended is not None and each.ended <= head and (not each.lost_at or self._is_copied(each)):
                self._store.forget_quarantine(name, each.number)
                continue
            stored = self._store.change(name, each.number)
            if stored is not None and not each.decided and not policy.judge(_change_of(stored, self._pipeline)).waits:
                self._store.decide(name, each.number, Decision.APPROVED, POLICY, "", utc_now())
        self._begun = True

    def lower(self, floor: Offset | None) -> Offset | None:
        """The offset from which on the log is kept, not only for others, who need it from `floor` on."""
        try:
            waiting = [each.through for each in self._store.quarantines(self._pipeline.name) if each.is_open]
        except TidemillError as error:
            events.warn("ddl.state_waits", error=error.what, where=error.where)
            return 0  # nothing goes before the store can be asked again
        return min([*waiting, *(() if floor is None else (floor,))], default=None)

    def delivered(self, offset: Offset) -> Offset:
        """Up to where sinks have everything, also of tables in quarantine; `offset` is where their group stands."""
        known = self._store.quarantines(self._pipeline.name)
        return min([offset, *(each.first for each in known if each.is_open or offset < (each.ended or 0))])

    def look(self) -> tuple[QuarantinedTable, ...]:
        """At most once a second anew."""
        if time.monotonic() - self._seen.at >= _LOOK_SECONDS:
            self._seen.at = time.monotonic()
            try:
                if not self._begun:
                    self._begin()
                self._look()
            except TidemillError as error:  # only numbers for people
                events.warn("pipeline.quarantine_unknown", error=error.what)
        return self._seen.tables

    def notices(self) -> tuple[dict[str, str], ...]:
        """As `look` left them."""
        return self._seen.notices

    def _look(self) -> None:
        known = self._store.quarantines(self._pipeline.name)
        waiting = [each for each in known if each.is_open]
        counts = self._seen.counts = {each.number: self._count(each) for each in waiting}
        self._seen.tables = tuple(
            QuarantinedTable(
                each.table, each.number, each.first, each.since, counts[each.number].events, counts[each.number].bytes,
                each.decided,
            )
            for each in waiting
        )  # fmt: skip
        lost = [_lost_notice(each) for each in known if each.lost_at and not self._is_copied(each)]
        self._seen.notices = (*(self._notice(each) for each in self._seen.tables), *lost)

    def _is_copied(self, quarantine: Quarantine) -> bool:
        """Whether a snapshot of the whole table began and ended since its rows were lost."""
        name = self._pipeline.name
        return any(
            copy.name == quarantine.table and copy.state is TableState.READY
            for record in self._snapshots.records(name)
            if record.began > quarantine.lost_at and not record.where
            for copy in self._snapshots.tables(name, record.id)
        )  # fmt: skip

    def _count(self, quarantine: Quarantine) -> _WaitingRows:
        """Goes on where the last look ended."""
        begin, tail = max(quarantine.through, self._log.head()), self._log.tail().offset
        count = self._seen.counts.get(quarantine.number)
        if count is None or count.start != begin:
            count = _WaitingRows(begin, begin)
        for entry in self._log.between(count.end, tail) if count.end < tail else ():
            for ref in entry.refs(count.end, tail):
                if ref.table == quarantine.table and requeued_for(ref) < quarantine.number:
                    count.events, count.bytes = count.events + ref.rows, count.bytes + ref.size
        count.end = tail
        return count

    def _notice(self, table: QuarantinedTable) -> dict[str, str]:
        change = self._store.change(self._pipeline.name, table.change)
        kinds = list_kinds([SchemaChangeKind(kind) for kind in change.kinds]) if change is not None else ""
        waits = f"{table.events:,} events ({table.bytes:,} bytes) of the table wait in the log since {table.since}"
        if table.decided:
            what = f"schema change {table.change} ({kinds}) is decided, and what waited comes now: {waits}"
            fix = "Nothing is to do. While capture cannot reach the source, they wait on."
        else:
            what = f"schema change {table.change} ({kinds}) waits for a decision: {waits}"
            fix = f"tidemill ddl show FILE {table.change}, then tidemill ddl approve, apply or reject."
        return {"code": "ddl-quarantined", "subject": table.table, "what": what, "fix": fix}


def _lost_notice(quarantine: Quarantine) -> dict[str, str]:
    return {
        "code": "quarantined-rows-lost", "subject": quarantine.table,
        "what": f"rows of the table that waited in quarantine from offset {quarantine.first} on went with the log",
        "fix": f"tidemill snapshot start FILE --table {quarantine.table} copies it anew.",
    }  # fmt: skip


def _change_of(stored: StoredChange, pipeline: Pipeline) -> SchemaChange:
    before, after = (Table.from_json(each) if each else None for each in (stored.before, stored.after))
    kinds = frozenset(SchemaChangeKind(kind) for kind in stored.kinds)
    return SchemaChange(pipeline.source_id, stored.offset, kinds, before, after, stored.text)
