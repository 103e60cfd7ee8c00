"""What every sink promises, asked of everything registered. Servers come from tests/delivery/destinations."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.delivery.destination import Destination
from tests.delivery.test_kills import WITHOUT
from tests.delivery.workload import typed
from tests.support.blocks import make_table
from tests.support.deliveries import make_deliveries, make_events
from tidemill import registry
from tidemill.contracts import BaseSink, Capabilities, Check, Outcome, Sink, SinkConfig
from tidemill.errors import DeliveryError, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Tier
from tidemill.model.derived import with_sub
from tidemill.model.position import Offset
from tidemill.model.schema_change import COLUMN_KINDS, SchemaChange, SchemaChangeKind, SchemaPlan
from tidemill.sinks._shared.resume_scheme import ResumeScheme

#: A configuration of each sink for the questions that need no server: nothing listens there.
UNREACHABLE: dict[str, dict[str, Any]] = {
    "blackhole": {},
    "files": {"path": "/nowhere/at/all"},
    "stdout": {"path": "/nowhere/at/all"},
    "starrocks": {"url": "http://127.0.0.1:9", "mysql_port": 9, "database": "d"},
    "clickhouse": {"host": "127.0.0.1", "port": 9, "connect_timeout_seconds": 0.5},
    "kafka": {"brokers": "127.0.0.1:9", "topic": "t", "delivery_timeout_seconds": 0.5},
    "pgstream": {"dsn": "postgresql://127.0.0.1:9/d", "stream": "s", "connect_timeout_seconds": 2},
    "postgres": {"dsn": "postgresql://127.0.0.1:9/d", "connect_timeout_seconds": 2},
    "redis": {"uri": "redis://127.0.0.1:9", "stream": "s"},
    "http": {"url": "http://127.0.0.1:9/", "deadline_seconds": 0.1},
    "nats": {"servers": ["nats://127.0.0.1:9"], "stream": "S", "subject": "s"},
    "s3": {
        "bucket": "lake",
        "endpoint": "http://127.0.0.1:9",
        "connect_timeout_seconds": 0.5,
        "timeout_seconds": 1,
        "access_key_id": "k",
        "secret_access_key": "s",
    },
}

SINKS = registry.names("sinks")
LOCAL = {"blackhole", "files", "stdout"}
TABLES = (typed(make_table("orders")), typed(make_table("customers")))
EVENTS = make_events(80, TABLES)


def make_sink(name: str, **options: Any) -> Sink:
    kind = registry.load("sinks", name)
    sink: Sink = kind(kind.Config(id="s", **(options or UNREACHABLE[name])))
    return sink


def test_every_registered_sink_stands_in_this_suite() -> None:
    assert set(SINKS) == UNREACHABLE.keys()


@pytest.mark.parametrize("name", SINKS)
def test_its_config_extends_the_common_one_and_every_field_is_described(name: str) -> None:
    config = registry.load("sinks", name).Config
    assert issubclass(config, SinkConfig)
    undescribed = [field for field, info in config.model_fields.items() if not info.description]
    assert not undescribed, f"fields without a description: {undescribed}"


@pytest.mark.parametrize("name", SINKS)
def test_it_says_its_tier(name: str) -> None:
    assert make_sink(name).tier in set(Tier)


#: Options with which a sink promises `effectively once`, where it does not by itself.
EXACT = {"kafka": {"exactly_once": True}}


@pytest.mark.parametrize("name", SINKS)
def test_what_it_promises_of_replays_stands_in_its_resume_module(name: str) -> None:
    place = f"tidemill.sinks.{name}.resume"
    if make_sink(name, **UNREACHABLE[name] | EXACT.get(name, {})).tier is not Tier.EFFECTIVELY_ONCE:
        return
    module = importlib.import_module(place)
    scheme = module.RESUME
    assert isinstance(scheme, ResumeScheme)
    assert module.__doc__
    assert all((scheme.kept_in, scheme.bound_by, scheme.replay))
    asked = scheme.resumption
    assert asked.__module__ == place or asked.__module__.startswith("tidemill.sinks._shared."), asked
    assert all(callable(getattr(asked, question)) for question in ("fresh", "note"))


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_that_keeps_no_tables_has_nothing_to_do_about_a_schema_change(name: str) -> None:
    sink = make_sink(name)
    if sink.capabilities.schema_changes:  # tests/sinks/state/test_schema_changes.py
        return
    change = SchemaChange("source", Offset(1), frozenset({SchemaChangeKind.ADD_COLUMN}), None, None)
    assert sink.plan(change) == SchemaPlan()
    sink.apply(change)


def test_a_sink_of_another_package_that_keeps_tables_and_plans_nothing_makes_no_empty_promise() -> None:
    class KeepsTables(BaseSink[SinkConfig]):
        capabilities = Capabilities(schema_changes=frozenset({SchemaChangeKind.ADD_COLUMN}))

    sink = KeepsTables(SinkConfig(id="s"))
    change = SchemaChange("source", Offset(1), frozenset({SchemaChangeKind.ADD_COLUMN}), None, None)
    for step in (sink.plan, sink.apply):
        with pytest.raises(Refused, match="beforehand"):
            step(change)


@pytest.mark.parametrize("name", SINKS)
def test_its_capabilities_name_exactly_the_formats_that_its_config_takes(name: str) -> None:
    kind = registry.load("sinks", name)
    sink = make_sink(name)
    assert sink.capabilities.formats == kind.capabilities.formats
    assert sink.capabilities.single_lane == kind.capabilities.single_lane
    takes = set()
    for wire_format in registry.names("formats"):
        try:
            kind.Config(id="s", **UNREACHABLE[name], format=wire_format)
        except ValidationError:
            continue
        takes.add(wire_format)
    assert kind.capabilities.formats == takes


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_that_keeps_current_rows_follows_changes_of_their_tables_and_sends_no_format(name: str) -> None:
    capabilities = make_sink(name).capabilities
    assert capabilities.upsert == bool(capabilities.schema_changes) == (not capabilities.formats)


_REFUSING = SchemaChangeKind.CREATE_TABLE, SchemaChangeKind.DROP_COLUMN


@pytest.mark.parametrize(
    ("name", "options", "upsert", "without"),
    [
        ("postgres", {"allow_destructive_ddl": True}, True, ()),
        ("postgres", {}, True, (SchemaChangeKind.DROP_COLUMN,)),
        ("postgres", {"create_tables": False}, True, tuple(COLUMN_KINDS)),
        ("clickhouse", {"allow_destructive_ddl": True}, True, ()),
        ("clickhouse", {"create_tables": False}, True, _REFUSING),
        ("clickhouse", {"mode": "changelog"}, False, (SchemaChangeKind.RENAME_COLUMN, SchemaChangeKind.DROP_COLUMN)),
        ("clickhouse", {"shared_tables": True, "allow_destructive_ddl": True}, True,
         (SchemaChangeKind.RENAME_COLUMN, SchemaChangeKind.DROP_COLUMN)),
        ("starrocks", {"create_tables": False}, True,
         tuple(COLUMN_KINDS - {SchemaChangeKind.ADD_COLUMN, SchemaChangeKind.RENAME_COLUMN})),
    ],
)  # fmt: skip
def test_an_object_says_less_than_its_class_where_its_config_forbids_it(
    name: str, options: dict[str, Any], upsert: bool, without: tuple[SchemaChangeKind, ...]
) -> None:
    kind = registry.load("sinks", name)
    capabilities = kind.capabilities_of(kind.Config(id="s", **UNREACHABLE[name], **options))
    assert make_sink(name, **UNREACHABLE[name], **options).capabilities == capabilities
    assert capabilities.upsert == upsert
    assert COLUMN_KINDS - capabilities.schema_changes == set(without)


@pytest.mark.parametrize("name", SINKS)
def test_doctor_gives_checks_with_a_fix_for_each_that_did_not_pass_and_raises_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.sinks.kafka.checks._TIMEOUT", 1.0)  # nobody is there, and the client waits for them
    sink = make_sink(name)
    checks = list(sink.doctor())
    sink.close()
    assert all(isinstance(check, Check) for check in checks)
    assert all(check.fix for check in checks if check.outcome is not Outcome.PASS)


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_that_was_never_used_can_be_closed_twice(name: str) -> None:
    sink = make_sink(name)
    sink.close()
    sink.close()


@pytest.mark.parametrize("name", [name for name in SINKS if name not in LOCAL])
def test_a_server_that_is_away_is_an_error_to_try_again_and_nothing_is_lost(name: str) -> None:
    sink = make_sink(name)
    lanes = 1 if sink.capabilities.single_lane else 2
    (delivery, *_) = make_deliveries(make_events(40, TABLES), 0, 40, lanes=lanes)
    with pytest.raises(DeliveryError) as caught:
        sink.write(delivery)
    sink.close()
    assert not isinstance(caught.value, Refused), "it would be given up"
    assert caught.value.where
    assert caught.value.fix


class Written:
    """A sink with its own server or folder, and what is in there."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.at: Destination = importlib.import_module(f"tests.delivery.destinations.{name}").destination(directory)
        self.lanes = 1 if registry.load("sinks", name).capabilities.single_lane else 2

    def sink(self) -> Sink:
        return make_sink(self.name, **self.at.config(self.at.port))

    def batch(self, start: int, end: int, without: Sequence[int] = ()) -> list[Delivery]:
        return [d.without(without) for d in make_deliveries(EVENTS, start, end, lanes=self.lanes)]

    def held(self) -> Counter[int]:
        """By offset, how often each event is there; of a destination that holds state, its row."""
        if self.at.state:
            return Counter(
                2 * int(row["id"]) + place for place, table in enumerate(TABLES) for row in self.at.rows(table.name)
            )
        return Counter(int(event["offset"]) for event in self.at.events())


@pytest.fixture(params=[name for name in SINKS if name not in WITHOUT])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    made = Written(request.param, tmp_path)
    made.at.start()
    try:
        yield made
    finally:
        made.at.stop()


def count_questions(sink: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often `write` asks its `Resumption` from now on (docs/adr/0027)."""
    asked: Counter[str] = Counter()
    resumption = importlib.import_module(f"tidemill.sinks.{sink}.resume").RESUME.resumption

    def counted(name: str) -> Callable[..., Any]:
        answer = getattr(resumption, name)

        def ask(*arguments: Any) -> Any:
            asked[name] += 1
            return answer(*arguments)

        return ask

    for name in ("fresh", "note"):
        monkeypatch.setattr(resumption, name, counted(name))
    return asked


@pytest.mark.slow  # a server per sink, found by the sink's name
def test_receipts_replays_and_letters(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = written.sink()
    assert sink.capabilities.upsert == written.at.state, "what is read back is rows, or events"
    receipt = sink.write(Delivery("shop", "orders", 0, 0, 0, written.lanes, lambda: iter(())))
    assert (receipt.sink, receipt.lane, receipt.events, receipt.ok) == ("s", 0, 0, True), "of an empty delivery"

    first = written.batch(0, 40, without=[7])
    exactly_once = sink.tier is Tier.EFFECTIVELY_ONCE
    asked = count_questions(written.name, monkeypatch) if exactly_once else Counter()
    receipts = [sink.write(delivery) for delivery in first]
    if exactly_once:
        assert asked["fresh"] >= len(first)
        assert asked["note"] == len(first)
    assert [r.lane for r in receipts] == list(range(written.lanes))
    assert sum(r.events + r.skipped for r in receipts) == 39
    assert all(r.ok and r.bytes > 0 for r in receipts)
    sink.close()
    whole = Counter(offset for offset in range(40) if offset != 7)
    assert written.held() == whole

    for again in (sink, written.sink()):  # the same worker, and one after a restart
        assert all(again.write(delivery).ok for delivery in first)
        again.close()
    assert written.held().keys() == whole.keys()
    if exactly_once:
        assert written.held() == whole, "a replay changed something"

    assert sum(sink.write(delivery).events for delivery in written.batch(40, 60)) == 20
    (dead_letter,) = make_deliveries(EVENTS, 7, 8, lanes=1)
    receipt = sink.write(dataclasses.replace(dead_letter, redelivered=True))
    assert (receipt.events, receipt.skipped) == (1, 0), "a letter is taken behind later events"
    assert sum(sink.write(delivery).events for delivery in written.batch(60, 80)) == 20, "the letter moved something"
    sink.close()
    assert written.held().keys() == set(range(80))
    if exactly_once:
        assert written.held() == Counter(range(80))


@pytest.mark.slow
def test_a_range_that_an_operator_sends_again_is_taken_and_moves_no_position(written: Written) -> None:
    """As rows it changes nothing; as events it is there once more, unless the destination knows them by their ids."""
    sink = written.sink()
    for delivery in written.batch(0, 40):
        sink.write(delivery)
    (again,) = make_deliveries(EVENTS, 10, 30, lanes=1)
    receipt = sink.write(dataclasses.replace(again, redelivered=True))
    assert (receipt.ok, receipt.events + receipt.skipped) == (True, 20)
    assert sum(sink.write(delivery).events for delivery in written.batch(40, 60)) == 20, "the range moved something"
    sink.close()
    held = written.held()
    assert held.keys() == set(range(60))
    if written.at.state:
        assert held == Counter(range(60))
    assert max(held.values()) <= 2
    assert {offset for offset, times in held.items() if times == 2} <= set(range(10, 30))


@pytest.mark.slow  # servers
def test_events_that_processors_added_are_told_apart_and_a_replay_keeps_them(written: Written) -> None:
    def doubled(delivery: Delivery) -> Delivery:
        def blocks() -> Iterator[Block]:
            for block in delivery.blocks():
                yield with_sub(block.take(np.repeat(np.arange(block.rows), 2)))

        return dataclasses.replace(delivery, blocks=blocks)

    for _ in range(2):
        sink = written.sink()
        for delivery in written.batch(0, 40):
            sink.write(doubled(delivery))
        sink.close()
    if written.at.state:
        assert set(written.held()) == set(range(40))
        return
    found = Counter(event["event_id"] for event in written.at.events())
    captured = {identity for identity in found if "." not in identity.rpartition(":")[2]}
    assert len(captured) == 40
    assert found.keys() == captured | {f"{identity}.1" for identity in captured}
    if make_sink(written.name, **written.at.config(written.at.port)).tier is Tier.EFFECTIVELY_ONCE:
        assert set(found.values()) == {1}
