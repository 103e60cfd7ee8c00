"""What else a statement on a table may write to: by triggers of the application, and by actions of foreign keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.sources._shared.sqlite_statements import TriggerStatement

_NO_ACTIONS = {"NO ACTION", "RESTRICT"}


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One column of it. `column` is the parent's; where it is not named, the one at this place of the primary key.
    `declared` is the type of the child's."""

    child: str
    parent: str
    on_update: str
    on_delete: str
    place: int = 0
    column: str | None = None
    declared: str = ""

    @property
    def acts(self) -> bool:
        return not {self.on_update, self.on_delete} <= _NO_ACTIONS


class WriteGraph:
    """Of one state of the schema. Names are compared as SQLite does it."""

    def __init__(self, triggers: Iterable[TriggerStatement], references: Iterable[ForeignKey]) -> None:
        """`triggers` are the application's, in the order in which they were made."""
        self._triggers: dict[str, list[TriggerStatement]] = defaultdict(list)
        self._references: dict[str, list[ForeignKey]] = defaultdict(list)
        for trigger in triggers:
            self._triggers[trigger.table.lower()].append(trigger)
        for key in references:
            self._references[key.parent.lower()].append(key)

    def triggers(self, table: str) -> Sequence[TriggerStatement]:
        return self._triggers[table.lower()]

    def references(self, table: str) -> Sequence[ForeignKey]:
        """Foreign keys to the table."""
        return self._references[table.lower()]

    def returns(self, trigger: TriggerStatement) -> bool:
        """Whether what it writes may come to its own table."""
        return trigger.table.lower() in self._reached(trigger.writes)

    def first_triggers(self, table: str) -> list[TriggerStatement]:
        """BEFORE triggers of the table that may write to it: its statement meets theirs in its middle."""
        return [trigger for trigger in self.triggers(table) if trigger.before and self.returns(trigger)]

    def is_nested(self, table: str) -> bool:
        """Whether a statement on the table may meet another one on it before its AFTER triggers run."""
        return bool(self.first_triggers(table)) or table.lower() in self._reached(self._acted_on(table))

    def failing_triggers(self, table: str) -> list[TriggerStatement]:
        """Those that may end a statement on the table after the row was changed, and before its AFTER triggers run:
        SQLite keeps the change then."""
        reached = sorted(self._reached(self._acted_on(table)))
        return [trigger for name in reached for trigger in self.triggers(name) if trigger.fails]

    def _acted_on(self, table: str) -> list[str]:
        return [key.child for key in self.references(table) if key.acts]

    def _reached(self, written: Iterable[str]) -> set[str]:
        """Tables and views that statements on these may write to, and these."""
        found: set[str] = set()
        left = [name.lower() for name in written]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [target for trigger in self._triggers[name] for target in trigger.writes]
                left += [child.lower() for child in self._acted_on(name)]
        return found
