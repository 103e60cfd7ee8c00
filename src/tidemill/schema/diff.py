"""What changed between two versions of a table: for sinks that follow it, and for DDL events."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.table import Column, Table


@dataclass(frozen=True, slots=True)
class Diff:
    """`renamed`, `changed` and `replaced` are (old, new) pairs; a column that was renamed and changed is in both.
    `replaced` went and came again under its name: another column, with other values."""

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    changed: tuple[tuple[Column, Column], ...] = ()
    replaced: tuple[tuple[Column, Column], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped or self.renamed or self.changed or self.replaced)


def diff(old: Table, new: Table) -> Diff:
    """A rename is taken from the columns' origins, else from `new.renamed`: one column gone and one come look the
    same, and guessing wrong would put the old column's values under the new name."""
    before = {c.name: c for c in old.columns}
    after = {c.name: c for c in new.columns}
    was = _names_before(old, new)
    kept = set(was.values())
    replaced = {name for name in after if name not in was and name in before and name not in kept}
    pairs = [(before[was.get(name, name)], c) for name, c in after.items() if name in was or name in replaced]
    return Diff(
        added=tuple(c for name, c in after.items() if name not in was and name not in replaced),
        dropped=tuple(c for name, c in before.items() if name not in kept and name not in replaced),
        renamed=tuple((before[old_name], after[name]) for name, old_name in was.items() if old_name != name),
        changed=tuple((old_column, now) for old_column, now in pairs if _shape(old_column) != _shape(now)),
        replaced=tuple((before[name], after[name]) for name in after if name in replaced),
    )


def _names_before(old: Table, new: Table) -> dict[str, str]:
    """Of each new column that was there: the name that it had."""
    before, after = {c.name: c for c in old.columns}, {c.name: c for c in new.columns}
    of_origin = {c.origin: c.name for c in old.columns if c.origin}
    found = {name: of_origin[c.origin] for name, c in after.items() if c.origin in of_origin}
    known = set(found.values())
    moves = {
        was: now for was, now in new.renamed
        if was in before and now in after and was not in known and now not in found
        and not (found and before[was].origin)  # else it is known that they are not the same
    }  # fmt: skip
    # The new name may be taken only by a column that gives it up itself: two that swapped their names.
    found |= {now: was for was, now in moves.items() if now not in before or now in moves}
    taken, by_origin = set(found.values()), any(c.origin in of_origin for c in new.columns)
    for name, column in after.items():
        if name in found or name not in before or name in taken:
            continue
        # Where no column at all is the same it is another table of that name: then columns go by their names.
        if not (by_origin and column.origin and before[name].origin):
            found[name] = name
    return found


def _shape(column: Column) -> tuple[object, ...]:
    return column.type.native, column.type.arrow, column.nullable, column.generated
