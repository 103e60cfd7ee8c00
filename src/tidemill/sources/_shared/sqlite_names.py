"""Names of tables as documents of SQLite and Turso sources have them: `orders`, `ord%`, `main.orders`. Everything that
is shown has one form, that of events: `main.orders`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.contracts import Check, Notice, Outcome, SnapshotConfig
from tidemill.decoders.sqlite import SCHEMA
from tidemill.errors import ConfigError
from tidemill.sources._shared.patterns import Pattern, Unmatched, suggest


def full_name(name: str) -> str:
    """As events have it."""
    return f"{SCHEMA}.{name}"


def list_names(names: Sequence[str], most: int = 5) -> str:
    """The first of them."""
    return ", ".join(map(full_name, names[:most])) + (", …" if len(names) > most else "")


def patterns_of(tables: Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(Pattern.parse(text, quote='"', default=SCHEMA, ignore_case=True) for text in tables)


def is_selected(patterns: Sequence[Pattern], name: str) -> bool:
    """No patterns: every table."""
    return not patterns or any(pattern.matches(SCHEMA, name) for pattern in patterns)


def name_filters(snapshot: SnapshotConfig | None) -> SnapshotConfig | None:
    """Its filters by full names, however the document names their tables."""
    if snapshot is None or not snapshot.filters:
        return snapshot
    named = {}
    for text, condition in snapshot.filters.items():
        (pattern,) = patterns_of([text])
        schema, name = pattern.literal
        if schema is None or name is None:
            raise ConfigError(f'"{text}" in snapshot.filters is a pattern', fix="Name one table, such as orders.")
        named[f"{schema}.{name}"] = condition
    return snapshot.model_copy(update={"filters": named})


def unmatched_notices(patterns: Sequence[Pattern], names: Sequence[str]) -> tuple[Notice, ...]:
    found = _find_unmatched(patterns, names)
    return tuple(Notice("pattern-unmatched", each.pattern.text, each.what, each.fix) for each in found)


def check_names(patterns: Sequence[Pattern], names: Sequence[str], snapshot: SnapshotConfig | None) -> Iterator[Check]:
    """`names` are all tables of the file."""
    chosen = sum(is_selected(patterns, name) for name in names)
    yield Check("tables", Outcome.PASS, f"{chosen} found")
    for unmatched in _find_unmatched(patterns, names):
        yield Check("tables", Outcome.WARN, unmatched.what, unmatched.fix)
    filters = snapshot.filters if snapshot is not None else {}
    for text in sorted(filters.keys() - {full_name(name) for name in names}):
        fix = f"{suggest(text, list(map(full_name, names)))}Correct `filters` of the snapshot."
        yield Check("snapshot.filters", Outcome.WARN, f"there is no table {text}: its filter counts for no row", fix)


def _find_unmatched(patterns: Sequence[Pattern], names: Sequence[str]) -> list[Unmatched]:
    return [
        Unmatched.yet(pattern, list(map(full_name, names)))
        for pattern in patterns
        if not any(pattern.matches(SCHEMA, name) for name in names)
    ]
