"""A table as the sinks of a group have it, and how they see it. Kept in the state store, per group and table."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.position import Offset
from tidemill.model.schema_change import SchemaChangeKind
from tidemill.model.table import Table
from tidemill.schema.view import TableView


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as the sinks of a group have it, from offset `since` on: rows before that come again, and change nothing.
    `views` are those of sinks that do not see it whole, by sink: offset from which on, and view; a later one counts for
    rows of its own structure."""

    source: Table
    since: Offset
    views: dict[str, list[tuple[Offset, TableView]]] = field(default_factory=dict)

    def view(self, sink: str) -> TableView:
        mine = self.views.get(sink)
        return mine[-1][1] if mine else TableView.whole(self.source)

    def shared_view(self) -> TableView:
        """As processors see it: they run once for all sinks, also for one that was added later."""
        views = [mine[-1] for mine in self.views.values() if mine]
        return max(views, key=lambda each: each[0])[1] if views else TableView.whole(self.source)

    def follow(self, after: Table, since: Offset, sinks: Iterable[str], ignored: Set[SchemaChangeKind]) -> KnownTable:
        """The table once all of the `sinks` have made a change, without the kinds that are `ignored`."""
        views = dict(self.views)
        for sink in sinks:
            view = self.view(sink).follow(after, ignored)
            if sink in views or not view.is_whole:
                views[sink] = [*views.get(sink, []), (since, view)]
        return KnownTable(after, since, views)

    def to_dict(self) -> dict[str, Any]:
        views = {sink: [[since, view.to_dict()] for since, view in mine] for sink, mine in self.views.items()}
        return {"source": self.source.to_json().decode(), "since": self.since, "views": views}

    @classmethod
    def from_dict(cls, doc: dict[str, Any]) -> KnownTable:
        views = {
            sink: [(since, TableView.from_dict(view)) for since, view in mine] for sink, mine in doc["views"].items()
        }
        return cls(Table.from_json(doc["source"]), doc["since"], views)
