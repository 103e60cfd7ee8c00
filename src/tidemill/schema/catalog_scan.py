"""What the source's catalog says against the registry: drift that the stream does not tell, or not yet. Pure.

Structure is compared with the newest registered version of a table. Defaults and expressions of generated columns are
not in any version: they are compared with a baseline, which is what the first scan of the table found. `capture` runs
scans by interval, `service/schema/scan.py` on demand; both keep what they must remember in the registry.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tidemill.contracts.catalog_scan import CatalogScan, ScannedTable
from tidemill.errors import RegistryError
from tidemill.model.table import Column, Table
from tidemill.schema.diff import diff

BASELINE = "catalog.baseline"
"""The document of the registry. Scans write it, and who accepts: always as `SchemaRegistry.revise`."""

_VERSION = 2
_LONGEST = 80


class CatalogDrift(enum.StrEnum):
    UNPUBLISHED = "unpublished"
    ADDED_COLUMN = "added_column"
    DROPPED_COLUMN = "dropped_column"
    RENAMED_COLUMN = "renamed_column"
    REPLACED_COLUMN = "replaced_column"
    TYPE = "type"
    NULLABILITY = "nullability"
    GENERATED = "generated"
    DEFAULT = "default"
    KEY = "key"
    KEY_INDEX = "key_index"
    REPLICA_IDENTITY = "replica_identity"


_TELL_ALL = (CatalogDrift.ADDED_COLUMN, CatalogDrift.DROPPED_COLUMN)
"""A column that came or went needs no second finding of its expression."""


@dataclass(frozen=True, slots=True, order=True)
class CatalogFinding:
    """`subject` is a column, or empty for the table as a whole. `what` is a sentence. `of_facts`: against the baseline,
    not against the registry."""

    table: str
    kind: CatalogDrift
    subject: str
    what: str
    of_facts: bool = False

    def to_list(self) -> list[Any]:
        return [self.table, str(self.kind), self.subject, self.what, self.of_facts]

    @classmethod
    def from_list(cls, data: Iterable[Any]) -> CatalogFinding:
        table, kind, subject, what, of_facts = data
        return cls(table, CatalogDrift(kind), subject, what, of_facts)


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What no version of a table has: `defaults` by column, empty for a column without one; `expressions` of generated
    columns, and which of these events have: the stream tells when they come and go."""

    defaults: Mapping[str, str]
    expressions: Mapping[str, str]
    streamed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: Table, scanned: ScannedTable) -> CatalogFacts:
        """All that the catalog says, of a table whose newest version is `table`."""
        expressions = dict(scanned.expressions)
        return cls(dict(scanned.defaults), expressions, _generated_columns(table) & expressions.keys())


@dataclass(frozen=True, slots=True)
class CatalogComparison:
    """`findings` whether accepted or not. `facts` are the baseline with tables and columns that were scanned for the
    first time, and without those that are gone."""

    findings: frozenset[CatalogFinding]
    facts: Mapping[str, CatalogFacts]


@dataclass(frozen=True, slots=True)
class CatalogBaseline:
    """Facts by table. `reported` findings are still so; `accepted` ones too, and are not reported."""

    facts: Mapping[str, CatalogFacts] = field(default_factory=dict)
    reported: frozenset[CatalogFinding] = frozenset()
    accepted: frozenset[CatalogFinding] = frozenset()

    def compare(self, scan: CatalogScan, tables: Iterable[Table]) -> CatalogComparison:
        """`tables` are the newest versions of all that events have come of; others are not compared."""
        found: list[CatalogFinding] = []
        facts: dict[str, CatalogFacts] = {}
        for table in tables:
            name = table.full_name
            scanned, known = scan.tables.get(name), self.facts.get(name)
            if scanned is None:
                continue
            now = CatalogFacts.of(table, scanned)
            facts[name] = now if known is None else _keep_known(known, now)
            structure = list(_compare_structure(table, scanned))
            come_or_gone = {each.subject for each in structure if each.kind in _TELL_ALL}
            facts_of = _compare_facts(name, known, now) if known is not None else ()
            found += [*structure, *(each for each in facts_of if each.subject not in come_or_gone)]
        return CatalogComparison(frozenset(found), facts)

    def advance(self, comparison: CatalogComparison, reported: Iterable[CatalogFinding]) -> CatalogBaseline:
        """What was accepted and is so no longer is reported when it comes again."""
        return CatalogBaseline(comparison.facts, frozenset(reported), self.accepted & comparison.findings)

    def accept(self, scan: CatalogScan, comparison: CatalogComparison, table: Table) -> CatalogBaseline:
        """The table as it is now is the baseline."""
        facts, name = {**self.facts, **comparison.facts}, table.full_name
        if (scanned := scan.tables.get(name)) is not None:
            facts[name] = CatalogFacts.of(table, scanned)
        standing = {each for each in comparison.findings if each.table == name and not each.of_facts}
        return replace(self, facts=facts, accepted=self.accepted | standing)

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "version": _VERSION,
                "facts": {
                    name: [each.defaults, each.expressions, sorted(each.streamed)] for name, each in self.facts.items()
                },
                "reported": [each.to_list() for each in sorted(self.reported)],
                "accepted": [each.to_list() for each in sorted(self.accepted)],
            },
            option=orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def from_json(cls, document: bytes | None) -> CatalogBaseline:
        if document is None:
            return cls()
        data: dict[str, Any] = orjson.loads(document)
        if data["version"] not in (1, _VERSION):  # 1 does not say what is streamed
            raise RegistryError(
                "what was scanned of the catalog was noted by another version of Tidemill",
                fix="Go on with that version, or set catalog_scan.enabled to false.",
            )
        return cls(
            {
                name: CatalogFacts(defaults, expressions, frozenset(*streamed))
                for name, (defaults, expressions, *streamed) in data["facts"].items()
            },
            frozenset(CatalogFinding.from_list(each) for each in data["reported"]),
            frozenset(CatalogFinding.from_list(each) for each in data["accepted"]),
        )


def _generated_columns(table: Table) -> frozenset[str]:
    return frozenset(c.name for c in table.columns if c.generated)


def _keep_known(known: CatalogFacts, now: CatalogFacts) -> CatalogFacts:
    """What was known of columns that are still there, and what is new of others."""
    expressions = {
        column: known.expressions.get(column, now.expressions.get(column, ""))
        for column in known.expressions.keys() - (known.streamed - now.expressions.keys()) | now.streamed
    }
    return CatalogFacts(
        {column: known.defaults.get(column, default) for column, default in now.defaults.items()},
        expressions, (known.streamed | now.streamed) & expressions.keys(),
    )  # fmt: skip


def _compare_structure(table: Table, scanned: ScannedTable) -> Iterator[CatalogFinding]:
    def finding(kind: CatalogDrift, subject: str, what: str) -> CatalogFinding:
        return CatalogFinding(table.full_name, kind, subject, what)

    now = scanned.table
    if now is None:
        yield finding(CatalogDrift.UNPUBLISHED, "", "the table is not published: no event of it comes")
        return
    changes = diff(table, now)
    for column in changes.added:
        what = f"column {column.name} of type {column.type.native} is there, and no event has had it yet"
        yield finding(CatalogDrift.ADDED_COLUMN, column.name, what)
    for column in changes.dropped:
        yield finding(CatalogDrift.DROPPED_COLUMN, column.name, f"column {column.name} is there no longer")
    for was, column in changes.renamed:
        yield finding(CatalogDrift.RENAMED_COLUMN, was.name, f"column {was.name} is called {column.name} now")
    for _, column in changes.replaced:
        what = f"column {column.name} was dropped and added again"
        yield finding(CatalogDrift.REPLACED_COLUMN, column.name, what)
    for was, column in changes.changed:
        yield from (finding(kind, column.name, what) for kind, what in _changes_of(was, column))
    if table.key != now.key:
        yield finding(CatalogDrift.KEY, "", f"the key is {_list(now.key)}, was {_list(table.key)}")
    if table.key and not any(set(index) == set(table.key) for index in scanned.unique):
        yield finding(CatalogDrift.KEY_INDEX, "", f"no usable unique index has the key {_list(table.key)}")
    if table.identity != now.identity:
        what = f"old rows are logged with {now.identity}, were with {table.identity}"
        yield finding(CatalogDrift.REPLICA_IDENTITY, "", what)


def _changes_of(was: Column, now: Column) -> Iterator[tuple[CatalogDrift, str]]:
    if was.type.native != now.type.native or was.type.arrow != now.type.arrow:
        yield CatalogDrift.TYPE, f"column {now.name} is {now.type.native}, was {was.type.native}"
    if was.nullable != now.nullable:
        may, might = ("may be null", "was not null") if now.nullable else ("is not null", "could be null")
        yield CatalogDrift.NULLABILITY, f"column {now.name} {may}, {might}"
    if was.generated != now.generated:
        yield CatalogDrift.GENERATED, f"column {now.name} is {'generated' if now.generated else 'not generated'} now"


def _compare_facts(name: str, known: CatalogFacts, now: CatalogFacts) -> Iterator[CatalogFinding]:
    for column in now.defaults.keys() & known.defaults.keys():
        was, default = known.defaults[column], now.defaults[column]
        if was != default:
            what = f"the default of column {column} is {_short(default)}, was {_short(was)}"
            yield CatalogFinding(name, CatalogDrift.DEFAULT, column, what, of_facts=True)
    for column in now.expressions.keys() | known.expressions.keys():
        made, was_made = now.expressions.get(column), known.expressions.get(column)
        by_stream = now.streamed if was_made is None else known.streamed if made is None else ()
        if made == was_made or column in by_stream:
            continue
        if made is None:
            what = f"column {column} is generated no longer, or is gone"
        elif was_made is None:
            what = f"column {column} is generated as {_short(made)}"
        else:
            what = f"column {column} is generated as {_short(made)}, was {_short(was_made)}"
        yield CatalogFinding(name, CatalogDrift.GENERATED, column, what, of_facts=True)


def _list(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "none"


def _short(text: str) -> str:
    return (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…") or "none"
