"""What changed between two versions of a table: for sinks that follow it, and for DDL events."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.table import Column, Table


@dataclass(frozen=True, slots=True)
class Diff:
    """`renamed` and `changed` are (old, new) pairs; a column that was renamed and changed is in both."""

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    changed: tuple[tuple[Column, Column], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped or self.renamed or self.changed)


def diff(old: Table, new: Table) -> Diff:
    """A rename is taken only from `new.renamed`: one column gone and one come look the same, and guessing wrong would
    put the old column's values under the new name."""
    before = {c.name: c for c in old.columns}
    after = {c.name: c for c in new.columns}
    renames = {
        now: was
        for was, now in new.renamed
        if was in before and was not in after and now in after and now not in before
    }
    moved = set(renames.values())
    pairs = [(before[renames.get(name, name)], c) for name, c in after.items() if renames.get(name, name) in before]
    return Diff(
        added=tuple(c for name, c in after.items() if name not in before and name not in renames),
        dropped=tuple(c for name, c in before.items() if name not in after and name not in moved),
        renamed=tuple((before[was], after[now]) for now, was in renames.items()),
        changed=tuple((was, now) for was, now in pairs if _shape(was) != _shape(now)),
    )


def _shape(column: Column) -> tuple[object, ...]:
    return column.type.native, column.type.arrow, column.nullable, column.generated
