"""Which columns of a StarRocks table get other names, and in which order.

A table there keeps nothing of what its columns are known by: there is only what the source says that they were called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tidemill.model.table import Table


def order_renames(table: Table, there: Collection[str], stuck: Collection[str]) -> Iterator[tuple[str, str]]:
    """Old and new names, each new one free by then. A source may tell every name that a column ever had: the latest
    that is there counts, and one that another column has now only if it is the only one. `stuck` are new names that the
    server could not give."""
    now, there = {c.name for c in table.columns}, set(there)
    former: dict[str, list[str]] = {}
    for old, new in table.renamed:
        if old in there and new in now and new not in stuck:
            former.setdefault(new, []).insert(0, old)
    left = {new: next((old for old in olds if old not in now), olds[0]) for new, olds in former.items()}
    while free := [new for new, old in left.items() if new not in there and old in there]:
        old = left.pop(free[0])
        there = there - {old} | {free[0]}
        yield old, free[0]


def find_alike(names: Collection[str]) -> list[str]:
    """Those that differ by case alone."""
    count = Counter(name.lower() for name in names)
    return [name for name in names if count[name.lower()] > 1]


def find_exchanged(table: Table) -> list[str]:
    """Columns that took each other's names, two or several in a ring."""
    after: dict[str, set[str]] = {}
    for old, new in table.renamed:
        after.setdefault(old, set()).add(new)

    def leads_to(start: str, goal: str) -> bool:
        seen, left = set[str](), [start]
        while left:
            name = left.pop()
            if name == goal:
                return True
            if name not in seen:
                seen.add(name)
                left += after.get(name, ())
        return False

    return [new for old, new in table.renamed if leads_to(new, old)]
