"""Drift fires on each of its kinds, and never on events that are as declared."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schema.sensing.material import BIGINT, DOUBLE, TEXT, block, table
from tests.schema.sensing.test_structure import DOCUMENTS
from tidemill.model.block import Block
from tidemill.model.drift import DriftKind
from tidemill.model.table import Column
from tidemill.schema import drift
from tidemill.schema.drift import DriftThreshold, Finding
from tidemill.schema.sensing import DeclaredColumn, SensingOptions, Sensor, Tally
from tidemill.state import open_store
from tidemill.stream.schema.sensing import DriftOptions, SensingKeeper

EVENTS = table()


class Watch:
    """Batches of blocks, and the drift that is found in them."""

    def __init__(
        self,
        directory: Path,
        declared: dict[str, DeclaredColumn] | None = None,
        *,
        documents: int = 1,
        thresholds: Any = None,
    ) -> None:
        self.store = open_store(str(directory / "state.sqlite"))
        self.options = SensingOptions(sample_rate=1, max_keys=20, declared={"public.events": declared or {}})
        self.drift = DriftOptions(True, documents, thresholds or {})
        self.offset = 0
        self.start()

    def start(self) -> None:
        self.keeper = SensingKeeper(self.store.sensing, "watch", self.options, self.drift)

    def see(self, *rows: dict[str, Any], of: Any = EVENTS, **lists: Any) -> None:
        self.offset += len(rows)
        self.see_block(block(of, rows, first=self.offset - len(rows), **lists))

    def see_block(self, block: Block) -> None:
        sensor = Sensor(SensingOptions.of(self.keeper.plan()))
        sensor.observe(0, block)
        self.keeper.take(self.offset, [sensor.take()])

    def found(self) -> list[tuple[DriftKind, str, int]]:
        return [(each.kind, each.subject, each.seen.count) for each in self.keeper.fired()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def test_each_drift_waits_once_for_its_sink_also_over_replays_and_restarts(directory: Path) -> None:
    watch = Watch(directory, {"note": DeclaredColumn(nullable=False)})
    watch.drift = replace(watch.drift, sent=True)
    watch.start()
    for _ in range(3):
        watch.see({"id": 1, "note": None})
        watch.keeper.take(watch.offset, [None])  # the batch comes again
        watch.start()
    (waiting,) = watch.store.sensing.drift_events("watch")
    told = waiting.document
    assert (told["table"], told["kind"], told["subject"]) == ("public.events", "unexpected_null", "note")
    assert (told["events"], told["offset"], told["position"]) == (1, 0, "0/0")


def test_a_null_where_none_is_declared_fires(directory: Path) -> None:
    watch = Watch(directory, {"note": DeclaredColumn(nullable=False)})
    watch.see({"id": 1, "note": "a"}, {"id": 2, "note": None}, {"id": None, "note": "b"}, {"id": 4, "note": None})
    assert watch.found() == [(DriftKind.UNEXPECTED_NULL, "id", 1), (DriftKind.UNEXPECTED_NULL, "note", 2)]
    note = watch.keeper.fired()[1].seen
    assert [spot.offset for spot in note.examples] == [1, 3]
    assert [spot.position for spot in note.examples] == ["0/1", "0/3"]
    assert note.last is not None
    assert note.last.offset == 3


def test_a_null_from_before_the_column_became_not_null_in_its_transaction_is_none(directory: Path) -> None:
    watch = Watch(directory)
    watch.see({"id": 1, "note": "x"})
    stricter = table(*(replace(c, nullable=False) for c in EVENTS.columns), sequence=2)
    sensor = Sensor(SensingOptions.of(watch.keeper.plan()))
    sensor.observe(0, block(EVENTS, [{"id": 2, "doc": {}, "note": None}], first=1))
    sensor.observe(1, block(stricter, [{"id": 2, "doc": {}, "note": "y"}], first=2))
    watch.keeper.take(3, [sensor.take()])
    assert watch.found() == []


def test_another_type_than_declared_fires(directory: Path) -> None:
    watch = Watch(directory, {"note": DeclaredColumn(type="integer"), "doc": DeclaredColumn(type="string")})
    watch.see({"id": 1, "note": "12"}, {"id": 2, "note": "twelve"}, {"id": 3, "note": None})
    assert watch.found() == [(DriftKind.TYPE_MISMATCH, "doc", 3), (DriftKind.TYPE_MISMATCH, "note", 1)]


def test_a_format_that_a_text_does_not_have_fires(directory: Path) -> None:
    watch = Watch(directory, {"note": DeclaredColumn(format="email")})
    watch.see({"id": 1, "note": "ada@example.org"}, {"id": 2, "note": "ada"})
    assert watch.found() == [(DriftKind.TYPE_MISMATCH, "note", 1)]


def test_a_column_whose_type_changed_at_the_source_fires(directory: Path) -> None:
    watch = Watch(directory)
    watch.see({"id": 1})
    watch.see({"id": 2.5}, of=table(Column("id", DOUBLE, nullable=False), *EVENTS.columns[1:], sequence=2))
    assert watch.found() == [(DriftKind.TYPE_MISMATCH, "id", 1)]
    assert watch.keeper.fired()[0].what == "column id is double precision, was bigint"


def test_a_column_that_was_not_declared_fires(directory: Path) -> None:
    watch = Watch(directory)
    watch.see({"id": 1})
    wider = table(*EVENTS.columns, Column("extra", TEXT), sequence=2)
    watch.see({"id": 2, "extra": "x"}, {"id": 3}, of=wider)
    assert watch.found() == [(DriftKind.UNDECLARED_COLUMN, "extra", 2)]


def test_a_column_that_events_do_not_have_any_more_fires(directory: Path) -> None:
    watch = Watch(directory, {"ghost": DeclaredColumn(type="string")})
    watch.see({"id": 1})
    watch.see({"id": 2}, of=table(*EVENTS.columns[:2], sequence=2))
    assert watch.found() == [(DriftKind.MISSING_COLUMN, "ghost", 2), (DriftKind.MISSING_COLUMN, "note", 1)]


def test_a_document_of_another_structure_fires(directory: Path) -> None:
    watch = Watch(directory, documents=2)
    watch.see({"id": 1, "doc": {"a": 1, "b": {"c": "x"}}}, {"id": 2, "doc": {"a": 2, "b": {"c": "y"}, "d": 1.5}})
    watch.see(
        {"id": 3, "doc": {"a": "1", "b": {"c": "x"}}},
        {"id": 4, "doc": {"a": 3, "b": {}}},
        {"id": 5, "doc": {"a": 3, "b": {"c": "x"}, "d": 2, "new": []}},
    )
    assert watch.found() == [
        (DriftKind.STRUCTURE_CHANGE, "doc/a", 1),
        (DriftKind.STRUCTURE_CHANGE, "doc/b/c", 1),
        (DriftKind.STRUCTURE_CHANGE, "doc/new", 1),
    ]
    said = [each.what for each in watch.keeper.fired()]
    assert said == ["doc/a is string, was integer", "doc/b/c is missing", "doc/new is new, of type array"]


@pytest.mark.parametrize(
    ("declared", "inside", "beyond"),
    [
        ({"id": DeclaredColumn(min=0, max=10)}, [{"id": 0}, {"id": 10}], [{"id": 11}, {"id": -1}]),
        ({"note": DeclaredColumn(values=("a", "b"))}, [{"note": "a"}, {"note": None}], [{"note": "c"}, {"note": "A"}]),
        ({"note": DeclaredColumn(max=2)}, [{"note": "ü!"}], [{"note": "abc"}, {"note": "four"}]),
    ],
)
def test_a_value_beyond_what_is_declared_fires(
    directory: Path, declared: dict[str, DeclaredColumn], inside: list[dict[str, Any]], beyond: list[dict[str, Any]]
) -> None:
    watch = Watch(directory, declared)
    watch.see(*({"id": 1, **row} for row in inside))
    assert watch.found() == []
    watch.see(*({"id": 1, **row} for row in beyond))
    assert watch.found() == [(DriftKind.OUT_OF_RANGE, next(iter(declared)), 2)]


def test_a_drift_is_an_event_once_and_names_no_value(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(directory, {"note": DeclaredColumn(values=("a",))})
    with caplog.at_level(logging.WARNING, "tidemill"):
        for _ in range(3):
            watch.see({"id": 1, "note": "secret"})
        watch.start()
        watch.see({"id": 1, "note": "secret"})
    (record,) = [record for record in caplog.records if record.getMessage() == "schema.drift"]
    fields = record.__dict__["fields"]
    assert (fields["table"], fields["kind"], fields["subject"]) == ("public.events", "out_of_range", "note")
    assert (fields["offset"], fields["position"]) == (0, "0/0")
    assert "secret" not in json.dumps(fields)
    assert watch.found() == [(DriftKind.OUT_OF_RANGE, "note", 4)]


def test_a_drift_below_its_threshold_is_counted_and_not_reported(directory: Path) -> None:
    thresholds = {DriftKind.OUT_OF_RANGE: DriftThreshold(min_events=2, min_rate=0.5)}
    watch = Watch(directory, {"id": DeclaredColumn(max=5)}, thresholds=thresholds)
    watch.see({"id": 9}, {"id": 1}, {"id": 1})
    watch.see({"id": 9})
    watch.see({"id": 1})
    assert watch.found() == [(DriftKind.OUT_OF_RANGE, "id", 2)]
    seldom = {DriftKind.OUT_OF_RANGE: DriftThreshold(min_rate=0.9)}
    rare = Watch(directory, {"id": DeclaredColumn(max=5)}, thresholds=seldom)
    rare.offset = watch.offset
    rare.see({"id": 1})
    assert [finding.seen.count for finding in rare.keeper._findings] == [2]


def test_a_column_of_a_map_may_have_any_key(directory: Path) -> None:
    watch = Watch(directory, documents=30)
    watch.see(*({"id": n, "doc": {"scores": {f"player-{n}": {"points": n}}}} for n in range(30)))
    watch.see({"id": 1, "doc": {"scores": {"somebody-new": {"points": 3}}}})
    assert watch.found() == []
    watch.see({"id": 1, "doc": {"scores": {"somebody": {"goals": 3}}}})
    assert [(subject, count) for _, subject, count in watch.found()] == [("doc/scores/{}/goals", 1)]


def test_what_was_not_sent_or_is_beyond_its_type_is_no_unexpected_null(directory: Path) -> None:
    watch = Watch(directory)
    watch.see({"id": 1}, {}, unchanged=[[], [0]], odd=[[], []])
    watch.see({}, odd=[[{"side": 2, "column": 0, "text": "infinity"}]])
    assert watch.found() == []


def test_an_accepted_drift_does_not_fire_again_and_the_next_one_does(directory: Path) -> None:
    watch = Watch(directory)
    watch.see({"id": 1})
    wider = table(*EVENTS.columns, Column("extra", BIGINT), sequence=2)
    watch.see({"id": 2, "extra": 1}, of=wider)
    baseline = drift.TableBaseline({c.name: (c.type.native, c.nullable) for c in wider.columns})
    watch.store.sensing.accept("watch", "public.events", baseline.to_dict())
    watch.see({"id": 3, "extra": 1}, of=wider)
    watch.see({"id": 4, "extra": 1}, of=wider)
    assert watch.found() == []
    watch.see({"id": 5}, of=EVENTS)
    assert watch.found() == [(DriftKind.MISSING_COLUMN, "extra", 1)]


def test_a_flood_of_places_is_added_up() -> None:
    found: list[Finding] = []
    for number in range(drift.MAX_SUBJECTS + 50):
        one = Finding("t", DriftKind.STRUCTURE_CHANGE, f"doc/k{number}", "is new", Tally(1))
        found = drift.merge(found, [one])
    assert len(found) == drift.MAX_SUBJECTS + 1
    assert {each.subject: each.seen.count for each in found}[drift.MORE] == 50


ROWS = st.lists(
    st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"doc": DOCUMENTS.map(json.dumps), "note": st.text()}),
    min_size=1,
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_events_that_are_as_those_before_never_fire(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], data: Any
) -> None:
    declared = DeclaredColumn("integer", nullable=False, min=0, max=9)
    watch = Watch(tmp_path_factory.mktemp("clean"), {"id": declared})
    watch.see(*rows)
    for _ in range(3):
        watch.see(*data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=6)))
    assert watch.found() == []
