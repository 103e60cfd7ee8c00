"""Inferred schemas in the state store: SQLite and PostgreSQL keep the same promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.state.conftest import Opener
from tidemill.contracts.sensing_store import DriftEvent, SensedBatch, SensedTable, SensedVersion, StoredFinding
from tidemill.state import sensing


def batch(offset: int, name: str = "public.orders", *, version: int = 1) -> SensedBatch:
    return SensedBatch(
        offset,
        "2026-01-31T12:00:00+00:00",
        [SensedTable(name, version, {"events": offset, "ü": "'"})],
        {name: SensedVersion(version, offset, "2026-01-31T12:00:00+00:00", [["id", version]])},
        {name: {"columns": {}}},
        [StoredFinding(name, "unexpected_null", "id", {"count": offset})],
    )


def test_a_pipeline_that_was_never_sensed_has_nothing(opener: Opener) -> None:
    store = opener().sensing
    assert (store.offset("orders"), store.revision("orders")) == (0, 0)
    assert (store.tables("orders"), store.findings("orders"), store.baselines("orders")) == ([], [], {})


def test_what_a_batch_changed_is_there_for_another_process(opener: Opener) -> None:
    opener().sensing.save("orders", batch(7))
    store = opener().sensing
    assert store.offset("orders") == 7
    assert store.tables("orders") == [SensedTable("public.orders", 1, {"events": 7, "ü": "'"})]
    (version,) = store.versions("orders", "public.orders")
    assert (version.version, version.offset, version.structure) == (1, 7, [["id", 1]])
    assert store.baselines("orders") == {"public.orders": {"columns": {}}}
    assert store.findings("orders") == [StoredFinding("public.orders", "unexpected_null", "id", {"count": 7})]
    assert store.tables("others") == []


def test_a_batch_that_was_kept_changes_nothing_when_it_comes_again(opener: Opener) -> None:
    store = opener().sensing
    store.save("orders", batch(7))
    store.save("orders", batch(7, "public.other"))
    store.save("orders", batch(3))
    assert store.offset("orders") == 7
    assert store.tables("orders") == [SensedTable("public.orders", 1, {"events": 7, "ü": "'"})]


def test_an_accepted_baseline_stays_until_the_next_and_its_findings_go(opener: Opener) -> None:
    store = opener().sensing
    store.save("orders", batch(7))
    store.save("orders", batch(8, "public.other"))
    for revision in (1, 2):
        store.accept("orders", "public.orders", {"columns": {"id": ["bigint", False]}})
        assert store.revision("orders") == revision
    assert store.baselines("orders")["public.orders"] == {"columns": {"id": ["bigint", False]}}
    assert [finding.table for finding in store.findings("orders")] == ["public.other"]
    store.save("orders", batch(9))
    assert store.revision("orders") == 2


def test_what_a_batch_found_does_not_undo_what_was_accepted_meanwhile(opener: Opener) -> None:
    store = opener().sensing
    store.save("orders", replace(batch(7), revision=0))
    opener().sensing.accept("orders", "public.orders", {"columns": {"id": ["bigint", False]}})
    store.save("orders", replace(batch(8, version=2), revision=0, drifted=({"kind": "a"},)))
    assert store.baselines("orders") == {"public.orders": {"columns": {"id": ["bigint", False]}}}
    assert store.findings("orders") == []
    assert (store.offset("orders"), store.tables("orders")[0].version) == (8, 2)
    assert len(store.drift_events("orders")) == 1  # it was reported
    store.save("orders", replace(batch(9), revision=1))
    assert len(store.findings("orders")) == 1


def test_only_the_newest_versions_are_kept(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing, "KEPT_VERSIONS", 3)
    store = opener().sensing
    for number in range(1, 7):
        store.save("orders", batch(number, version=number))
    assert [each.version for each in store.versions("orders", "public.orders")] == [6, 5, 4]


def test_another_state_directory_begins_without_what_was_sensed(opener: Opener) -> None:
    store = opener()
    store.claim("orders", "here")
    store.sensing.save("orders", batch(7))
    store.claim("orders", "there")
    assert (store.sensing.offset("orders"), store.sensing.tables("orders")) == (0, [])
    store.sensing.save("orders", batch(3))
    store.forget("orders")
    assert store.sensing.tables("orders") == []


def test_drift_waits_for_its_sink_and_no_number_is_given_twice(opener: Opener) -> None:
    store = opener().sensing
    store.save("orders", replace(batch(7), drifted=({"kind": "a"}, {"kind": "b"})))
    store.save("orders", replace(batch(7), drifted=({"kind": "again"},)))
    store.save("others", replace(batch(7), drifted=({"kind": "elsewhere"},)))
    assert opener().sensing.drift_events("orders") == [DriftEvent(1, {"kind": "a"}), DriftEvent(2, {"kind": "b"})]
    for number in (1, 2, 2):
        store.forget_drift_event("orders", number)
    assert store.drift_events("orders") == []
    store.save("orders", replace(batch(8), drifted=({"kind": "c"},)))
    assert store.drift_events("orders") == [DriftEvent(3, {"kind": "c"})]
    assert [each.number for each in store.drift_events("others")] == [1]
