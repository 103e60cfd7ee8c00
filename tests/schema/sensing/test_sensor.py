"""What a sensor says of blocks, and that it does not matter in which order that is merged."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.schema.sensing.material import BIGINT, DOUBLE, JSON, NUMERIC, TEXT, TIMESTAMP, block, table
from tests.schema.sensing.test_structure import DOCUMENTS
from tests.support.blocks import make_block
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block, Op
from tidemill.model.table import Column
from tidemill.schema.sensing import Sensed, SensingOptions, Sensor, SensorCache, TableProfile, json_schema, unpack

ALL = SensingOptions(sample_rate=1, ranges=True, enumerations=True, formats=True)
EVENTS = table()


def sense(*blocks: Block, options: SensingOptions = ALL, cache: SensorCache | None = None) -> Sensed:
    sensor = Sensor(options, cache)
    for number, each in enumerate(blocks):
        sensor.observe(number, each)
    (found,) = unpack(sensor.take())
    return found


def profile(*rows: dict[str, Any], options: SensingOptions = ALL) -> TableProfile:
    return sense(block(EVENTS, rows), options=options).profile


def test_null_rates_and_where_the_first_and_the_last_null_stand() -> None:
    found = profile(*({"id": n, "note": None if n % 4 == 0 else "x"} for n in range(10)))
    note = found.columns["note"]
    assert (found.events, found.sampled, note.values, note.nulls.count) == (10, 10, 10, 3)
    assert note.nulls.first is not None
    assert note.nulls.last is not None
    assert (note.nulls.first.offset, note.nulls.first.position) == (0, "0/0")
    assert note.nulls.last.offset == 8
    assert note.nulls.last.at.startswith("2026-01-01 00:00:00")


def test_a_column_that_was_not_sent_and_a_value_beyond_its_type_are_not_null() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "note": "x"}, {"id": 2}, {"id": 3}, {"id": 4}]
    odd = [{"side": 2, "column": 2, "text": "NaN"}]
    found = sense(block(EVENTS, rows, unchanged=[[], [2], [], []], odd=[[], [], odd, []])).profile.columns["note"]
    assert (found.values, found.unchanged, found.odd, found.nulls.count) == (3, 1, 1, 1)


def test_ranges_of_numbers_and_times() -> None:
    kinds = table(Column("n", BIGINT), Column("d", NUMERIC), Column("f", DOUBLE), Column("t", TIMESTAMP))
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    rows = [{"n": n, "d": Decimal(n) / 4, "f": n / 2, "t": at + datetime.timedelta(days=n)} for n in (7, -3, 12)]
    columns = sense(block(kinds, [*rows, {}])).profile.columns
    shown = {name: (column.range[0][1], column.range[1][1]) for name, column in columns.items() if column.range}
    assert shown["n"] == ("-3", "12")
    assert shown["d"] == ("-0.75", "3.00")
    assert shown["f"] == ("-1.5", "6.0")
    assert (shown["t"][0][:10], shown["t"][1][:10]) == ("2026-01-28", "2026-02-12")


def test_few_values_are_an_enumeration_and_many_are_not() -> None:
    few = profile(*({"id": n, "note": "ab"[n % 2]} for n in range(30))).columns
    assert few["note"].enumeration == frozenset("ab")
    assert (few["id"].enumeration, few["id"].many) == (None, True)


@pytest.mark.parametrize(
    ("texts", "format"),
    [
        (["2026-01-31", "1999-12-01", "2024-02-29", "2000-02-29", "2026-06-30"], "date"),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00.5+02:00"], "date-time"),
        (["9b2d5b2e-59a1-4e0c-8d5a-000000000001"], "uuid"),
        (["ada@example.org", "a.b+c@mail.example.co.uk"], "email"),
        (["https://example.org/a?b=c", "s3://bucket/key"], "uri"),
        (["12", "-7"], "integer"),
        (["1.5", "2e10"], "number"),
    ],
)
def test_a_format_is_one_that_every_text_has(texts: list[str], format: str) -> None:
    found = profile(*({"id": 1, "note": text} for text in texts)).columns["note"]
    assert format in (found.formats or ())
    mixed = profile(*({"id": 1, "note": text} for text in [*texts, "no such thing"])).columns["note"]
    assert mixed.formats == frozenset()


def test_what_was_not_asked_for_is_not_looked_at() -> None:
    found = profile({"id": 1, "note": "a"}, options=SensingOptions()).columns["note"]
    assert (found.range, found.enumeration, found.formats) == (None, None, None)


def test_documents_are_looked_into_down_to_a_depth() -> None:
    found = profile({"id": 1, "doc": {"a": {"b": {"c": {"d": 1}}}}}, options=SensingOptions(max_depth=2))
    assert set(found.columns["doc"].paths) == {("", "object"), ("/a", "object"), ("/a/b", "object")}
    assert profile({"id": 1, "doc": {"a": 1}}, options=SensingOptions(max_depth=0)).columns["doc"].paths == {}


def test_keys_that_are_data_become_a_map_over_many_documents() -> None:
    found = profile(
        *({"id": n, "doc": {f"user-{n}": {"points": n}}} for n in range(50)),
        options=SensingOptions(sample_rate=1, max_keys=20),
    )
    assert found.columns["doc"].paths == {
        ("", "object"): 50, ("/{}", "object"): 50, ("/{}/points", "integer"): 50,
    }  # fmt: skip


def test_a_text_that_is_no_json_is_said_to_be_unreadable() -> None:
    column = profile({"id": 1, "doc": '{"a":'}, {"id": 2, "doc": {"a": 1}}).columns["doc"]
    assert column.paths["", "unreadable"] == 1
    assert json_schema(profile({"id": 1, "doc": '{"a":'}))["properties"]["doc"] == {}


def test_after_the_warm_up_one_in_so_many_is_looked_at_and_a_replay_looks_at_the_same() -> None:
    options, blocks = SensingOptions(warmup_events=50, sample_rate=5), [
        block(EVENTS, [{"id": n} for n in range(1000)], first=first) for first in (0, 1000)
    ]  # fmt: skip
    found, again = sense(*blocks, options=options), sense(*blocks, options=options)
    assert found.profile.events == 2000
    assert 300 < found.profile.sampled < 600
    assert again == found
    cache = SensorCache()
    first = sense(blocks[0], options=options, cache=cache).profile.sampled
    second = sense(blocks[1], options=options, cache=cache).profile.sampled
    assert first + second == found.profile.sampled


def test_every_row_of_a_table_whose_offsets_are_multiples_of_the_rate_has_its_chance() -> None:
    options = SensingOptions(warmup_events=0, sample_rate=5)
    sampled = [sense(make_block(500, offsets=range(shift, 2500 + shift, 5)), options=options).profile.sampled
               for shift in range(5)]  # fmt: skip
    assert all(60 < count < 140 for count in sampled)


def test_events_that_were_counted_before_are_not_counted_again() -> None:
    rows = [{"id": n} for n in range(10)]
    assert sense(block(EVENTS, rows), options=SensingOptions(since=4)).profile.events == 6
    sensor = Sensor(SensingOptions(since=10))
    sensor.observe(0, block(EVENTS, rows))
    assert sensor.take() == b""


def test_a_block_that_two_sinks_read_is_looked_at_once() -> None:
    sensor = Sensor(ALL)
    for _ in range(2):
        sensor.observe(7, block(EVENTS, [{"id": 1}]))
    assert sensor.tables()["public.events"].profile.events == 1


def test_deletes_and_messages_have_no_row_to_look_at() -> None:
    ops = [Op.INSERT, Op.DELETE, Op.UPDATE]
    assert sense(make_block(3, ops=ops)).profile.events == 2
    for op in (Op.DELETE, Op.MESSAGE):
        sensor = Sensor(ALL)
        sensor.observe(0, make_block(2, ops=op))
        assert sensor.take() == b""


def test_the_structure_cache_stays_small_and_changes_nothing() -> None:
    rows = [{"id": n, "doc": {f"k{n % 40}": 1}} for n in range(200)]
    cache = SensorCache()
    small = SensingOptions(sample_rate=1, structures=5)
    parts = [block(EVENTS, rows[n : n + 50], first=n) for n in range(0, 200, 50)]
    assert sense(*parts, options=small, cache=cache) == sense(*parts, options=SensingOptions(sample_rate=1))
    assert len(cache.shapes) == 5


ROWS = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={"doc": DOCUMENTS.map(json.dumps), "note": st.none() | st.text(max_size=4)},
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=3, max_size=12), st.data())
def test_merging_is_associative_and_commutative(rows: list[dict[str, Any]], data: Any) -> None:
    options = SensingOptions(sample_rate=1, ranges=True, enumerations=True, formats=True, max_values=3, max_keys=3)
    cut = sorted(data.draw(st.lists(st.integers(1, len(rows) - 1), min_size=2, max_size=2)))
    pieces = [
        p
        for p in (block(EVENTS, rows[a:b], first=a) for a, b in zip([0, *cut], [*cut, len(rows)], strict=True))
        if p.rows
    ]
    parts = [sense(piece, options=options).profile for piece in pieces]
    whole = sense(block(EVENTS, rows), options=options).profile

    def merged(order: list[TableProfile]) -> TableProfile:
        total = order[0]
        for part in order[1:]:
            total = total.merge(part, max_values=3, max_keys=3)
        return total

    assert merged(parts) == whole
    assert merged(parts[::-1]) == whole
    assert merged([parts[0], merged(parts[1:])] if len(parts) > 2 else parts) == whole
    assert TableProfile.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=12), st.sampled_from([2, 5, 100]), st.integers(0, 11), st.booleans())
def test_the_json_schema_validates_the_events_that_it_was_made_from(
    rows: list[dict[str, Any]], most: int, cut: int, later: bool
) -> None:
    """In one piece or two, the second one perhaps with options that the first did not have."""
    every = SensingOptions(sample_rate=1, ranges=True, enumerations=True, formats=True, max_keys=most, max_values=3)
    plain = SensingOptions(sample_rate=1, max_keys=most)
    made, parts = block(EVENTS, rows), []
    for piece, options in ((rows[:cut], plain if later else every), (rows[cut:], every)):
        if piece:
            parts.append(sense(block(EVENTS, piece), options=options).profile)
    profile = parts[0] if len(parts) == 1 else parts[0].merge(parts[1], max_values=3, max_keys=most)
    schema = json_schema(profile)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for event in JsonFormat().encode(made, "shop").to_pylist():
        validator.validate(json.loads(event)["after"])


def is_valid(profile: TableProfile, *rows: dict[str, Any]) -> bool:
    validator = Draft202012Validator(json_schema(profile), format_checker=Draft202012Validator.FORMAT_CHECKER)
    return all(validator.is_valid({"doc": None, "note": None, **row}) for row in rows)


def test_a_key_of_a_map_may_have_every_type_of_the_maps_values_in_whichever_document_it_came() -> None:
    wide = {"id": 1, "doc": {f"k{n}": "x" if n == 5 else n for n in range(150)}}
    narrow = {"id": 2, "doc": {"k5": 1}}
    parts = profile(wide), profile(narrow)
    for one, other in (parts, parts[::-1]):
        merged = one.merge(other, max_values=20, max_keys=100)
        assert set(merged.columns["doc"].paths) == {("", "object"), ("/{}", "integer"), ("/{}", "string")}
        assert is_valid(merged, wide, narrow)


@pytest.mark.parametrize("whole_first", [True, False])
def test_what_is_looked_at_only_from_some_event_on_is_not_said_of_all(whole_first: bool) -> None:
    plain, row, other = SensingOptions(sample_rate=1), {"id": 500, "note": "b"}, {"id": 1, "note": "2026-01-31"}
    parts = [profile(row, options=plain), profile(other)]
    merged = parts[whole_first].merge(parts[not whole_first], max_values=20, max_keys=100)
    assert is_valid(merged, row, other)
    assert merged.columns["note"].enumeration == frozenset({"2026-01-31"})  # and is still shown
    whole = json_schema(profile(other))["properties"]
    assert (whole["note"]["format"], whole["id"]["maximum"]) == ("date", 1)


@pytest.mark.parametrize(
    "text", ["2026-02-29", "2026-04-31", "1900-02-29", "2026-02-30T10:00:00Z", "2026-01-31T10:00:00+99:00"]
)
def test_a_day_or_a_zone_that_there_is_not_is_no_date(text: str) -> None:
    found = profile({"id": 1, "note": text})
    assert found.columns["note"].formats == frozenset()
    assert is_valid(found, {"id": 1, "note": text})


def test_the_json_schema_of_common_types_validates_their_events_and_refuses_others() -> None:
    made = make_block(50)
    schema = json_schema(sense(made).profile)
    validator = Draft202012Validator(schema)
    rows = [json.loads(event)["after"] for event in JsonFormat().encode(made, "shop").to_pylist()]
    for row in rows:
        validator.validate(row)
    assert schema["required"] == [column.name for column in made.table.columns]
    assert not validator.is_valid({**rows[0], "quantity": "many"})
    assert not validator.is_valid({**rows[0], "quantity": 1000})
    assert not validator.is_valid({name: value for name, value in rows[0].items() if name != "customer"})


def test_the_json_schema_also_validates_events_from_before_a_change_of_type() -> None:
    older = table(Column("id", BIGINT, nullable=False), Column("doc", BIGINT))
    newer = table(Column("id", BIGINT, nullable=False), Column("doc", TEXT), Column("more", JSON), sequence=2)
    blocks = [block(older, [{"id": 1, "doc": 5}]), block(newer, [{"id": 2, "doc": "x", "more": {"a": 1}}], first=1)]
    schema = json_schema(sense(*blocks).profile)
    for made in blocks:
        (event,) = JsonFormat().encode(made, "shop").to_pylist()
        Draft202012Validator(schema).validate(json.loads(event)["after"])
    assert schema["required"] == ["id", "doc"]


def test_a_document_that_was_required_of_all_is_required_in_the_schema() -> None:
    rows = [{"id": 1, "doc": {"a": 1, "b": {"c": "x"}}}, {"id": 2, "doc": {"a": 1.5, "b": {}, "d": [1, None]}}]
    schema = json_schema(profile(*rows))["properties"]["doc"]
    assert schema["required"] == ["a", "b"]
    assert schema["properties"]["a"] == {"type": "number"}
    assert schema["properties"]["d"]["items"] == {"type": ["integer", "null"]}
    assert "required" not in schema["properties"]["b"]
