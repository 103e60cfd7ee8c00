"""The catalog against the registry, without a database: each kind of finding, and none where nothing differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.blocks import make_table
from tidemill.contracts.catalog_scan import CatalogScan, ScannedTable
from tidemill.model.table import Column, Table
from tidemill.schema.catalog_scan import CatalogBaseline, CatalogDrift, CatalogFinding

ORDERS = make_table()
BIGINT = ORDERS.columns[0].type
DEFAULTS = {column.name: "" for column in ORDERS.columns} | {"quantity": "1"}


def scanned(table: Table | None = ORDERS, **facts: object) -> ScannedTable:
    given = {"defaults": DEFAULTS, "expressions": {"total": "price * 2"}, "unique": (("id",),)} | facts
    return ScannedTable("public.orders", table, **given)  # type: ignore[arg-type]


def scan(*tables: ScannedTable) -> CatalogScan:
    return CatalogScan({each.name: each for each in tables})


def first_scan() -> CatalogBaseline:
    """As the first scan of a running pipeline leaves it."""
    known = CatalogBaseline()
    return known.advance(known.compare(scan(scanned()), [ORDERS]), ())


def findings(found: ScannedTable, baseline: CatalogBaseline | None = None) -> set[tuple[CatalogDrift, str]]:
    return {(each.kind, each.subject) for each in (baseline or first_scan()).compare(scan(found), [ORDERS]).findings}


def column(old: str, **change: object) -> tuple[Column, ...]:
    return tuple(replace(c, **change) if c.name == old else c for c in ORDERS.columns)  # type: ignore[arg-type]


def test_a_catalog_that_says_what_the_registry_says_has_no_findings() -> None:
    assert findings(scanned(), CatalogBaseline()) == set()
    assert findings(scanned()) == set()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (scanned(None), (CatalogDrift.UNPUBLISHED, "")),
        (scanned(replace(ORDERS, columns=(*ORDERS.columns, Column("new", BIGINT)))),
         (CatalogDrift.ADDED_COLUMN, "new")),
        (scanned(replace(ORDERS, columns=ORDERS.columns[:-1])), (CatalogDrift.DROPPED_COLUMN, "placed_at")),
        (scanned(replace(ORDERS, columns=column("note", name="remark"), renamed=(("note", "remark"),))),
         (CatalogDrift.RENAMED_COLUMN, "note")),
        (scanned(replace(ORDERS, columns=column("note", type=BIGINT))),
         (CatalogDrift.TYPE, "note")),
        (scanned(replace(ORDERS, columns=column("note", nullable=False))), (CatalogDrift.NULLABILITY, "note")),
        (scanned(replace(ORDERS, columns=column("note", generated=True))), (CatalogDrift.GENERATED, "note")),
        (scanned(defaults=DEFAULTS | {"quantity": "2"}), (CatalogDrift.DEFAULT, "quantity")),
        (scanned(defaults=DEFAULTS | {"quantity": ""}), (CatalogDrift.DEFAULT, "quantity")),
        (scanned(expressions={"total": "price * 3"}), (CatalogDrift.GENERATED, "total")),
        (scanned(expressions={"total": "price * 2", "more": "1"}), (CatalogDrift.GENERATED, "more")),
        (scanned(expressions={}), (CatalogDrift.GENERATED, "total")),
        (scanned(unique=(("customer",),)), (CatalogDrift.KEY_INDEX, "")),
        (scanned(replace(ORDERS, key=("customer",)), unique=(("id",), ("customer",))), (CatalogDrift.KEY, "")),
        (scanned(replace(ORDERS, identity="full")), (CatalogDrift.REPLICA_IDENTITY, "")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_each_kind_of_difference_is_one_finding(found: ScannedTable, expected: tuple[CatalogDrift, str]) -> None:
    assert findings(found) == {expected}


def test_a_table_that_is_gone_is_told_by_others() -> None:
    assert first_scan().compare(scan(), [ORDERS]).findings == frozenset()


def test_a_table_of_which_no_event_has_come_is_not_compared() -> None:
    assert CatalogBaseline().compare(scan(scanned()), []).findings == frozenset()


def test_a_column_that_comes_later_is_compared_from_then_on() -> None:
    known, later = first_scan(), scanned(defaults=DEFAULTS | {"new": "7"})
    comparison = known.compare(scan(later), [ORDERS])
    assert comparison.findings == frozenset()
    known = known.advance(comparison, ())
    assert findings(scanned(defaults=DEFAULTS | {"new": "8"}), known) == {(CatalogDrift.DEFAULT, "new")}


def test_a_generated_column_that_the_stream_tells_is_no_finding_when_it_comes_or_goes() -> None:
    more = replace(ORDERS, columns=(*ORDERS.columns, Column("more", BIGINT, generated=True)))
    told = scanned(more, expressions={"total": "price * 2", "more": "1"})
    known = first_scan()
    for catalog, table in ((told, ORDERS), (told, more), (scanned(), more), (scanned(), ORDERS), (told, more)):
        comparison = known.compare(scan(catalog), [table])
        agrees = catalog.table is table
        assert {each.subject for each in comparison.findings} == (set() if agrees else {"more"}), (catalog, table)
        known = CatalogBaseline.from_json(known.advance(comparison, ()).to_json())
    other = scanned(more, expressions={"total": "price * 2", "more": "2"})
    assert {each.subject for each in known.compare(scan(other), [more]).findings} == {"more"}


def test_what_an_earlier_version_noted_is_read() -> None:
    document = first_scan().to_json().replace(b",[]]", b"]").replace(b'"version":2', b'"version":1')
    assert CatalogBaseline.from_json(document) == first_scan()


def test_what_is_accepted_is_no_finding_until_it_ends_and_comes_again() -> None:
    gone = scanned(None, defaults=DEFAULTS | {"quantity": "2"})
    known = first_scan()
    comparison = known.compare(scan(gone), [ORDERS])
    assert len(comparison.findings) == 2
    known = known.accept(scan(gone), comparison, ORDERS)

    def visible(found: ScannedTable) -> set[CatalogDrift]:
        nonlocal known
        comparison = known.compare(scan(found), [ORDERS])
        shown = comparison.findings - known.accepted
        known = known.advance(comparison, shown)
        return {each.kind for each in shown}

    assert visible(gone) == set()
    assert visible(scanned()) == {CatalogDrift.DEFAULT}, "the accepted default is the baseline now"
    assert visible(gone) == {CatalogDrift.UNPUBLISHED}, "it came back in between"


def test_a_baseline_is_read_back_as_it_was_written() -> None:
    finding = CatalogFinding("public.orders", CatalogDrift.TYPE, "id", "column id is bigint, was integer")
    known = replace(first_scan(), reported=frozenset({finding}), accepted=frozenset({replace(finding, subject="x")}))
    assert CatalogBaseline.from_json(known.to_json()) == known
    assert CatalogBaseline.from_json(None) == CatalogBaseline()
