"""Tables in quarantine, as the driver of one group knows them (ADR 53).

They are the pipeline's, not the group's: every group leaves the same rows out, and meets them again at the log's end.
So the store is asked before each batch while a table may wait. The answer is never too old: capture notes the end of a
quarantine before it appends anything after it, and the batch's last event is in the log already.
"""

from __future__ import annotations

from typing import Any

from tidemill.contracts.schema_change_store import SchemaChangeStore, StoredChange
from tidemill.log import BlockRef
from tidemill.log.requeued import is_kept_back
from tidemill.model.clock import utc_now
from tidemill.model.quarantine import Quarantine
from tidemill.model.schema_change import SchemaChange
from tidemill.stream.schema.known_table import KnownTable


class QuarantineKeeper:
    def __init__(self, store: SchemaChangeStore, pipeline: str, *, watched: bool) -> None:
        """`watched`: policies may put a table into quarantine, so that another group may have done it."""
        self._store, self._pipeline, self._watched = store, pipeline, watched
        self._known: list[Quarantine] | None = None

    @property
    def held(self) -> list[Any]:
        """For lanes: see `Plan.held`."""
        return [each.to_hold() for each in self._load()]

    def refresh(self) -> None:
        """Before a batch whose bounds are known."""
        if self._watched or any(each.is_open for each in self._load()):
            self.reload()

    def reload(self) -> None:
        self._known = None

    def keeps_back(self, ref: BlockRef) -> bool:
        return is_kept_back(ref, self._load())

    def begin(self, stored: StoredChange) -> Quarantine:
        """Durable before any row after the change is passed over."""
        made = self._store.quarantine(self._pipeline, stored.number, stored.table, stored.offset, utc_now())
        self.reload()
        return made

    def find_released(self, change: SchemaChange, known: KnownTable | None, number: int) -> StoredChange | None:
        """The decided change that this is, met again in rows that were appended for the one of this `number`, or after
        those were lost; None for one that came while they waited. `known` is the table as the group has it: once it has
        the change, what differs is another one."""
        mine = next(
            (each for each in self._load() if each.number == number or (each.lost_at and self._ended(each, change))),
            None,
        )
        if mine is None or (known is not None and known.since >= mine.first and known.since != change.offset):
            return None
        stored = self._store.change(self._pipeline, mine.number)
        after = change.after.to_json().decode() if change.after is not None else ""
        same = stored is not None and (stored.kinds, stored.after) == (tuple(sorted(map(str, change.kinds))), after)
        return stored if same else None

    def _ended(self, quarantine: Quarantine, change: SchemaChange) -> bool:
        """Whether the change stands after the end of its table's quarantine."""
        mine = quarantine.table == change.table.full_name
        return mine and quarantine.ended is not None and quarantine.ended <= change.offset

    def _load(self) -> list[Quarantine]:
        if self._known is None:
            self._known = self._store.quarantines(self._pipeline)
        return self._known
