"""What every sink promises, asked of everything registered. A sink that needs a server says here where it gets one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.deliveries import make_deliveries, make_events
from tidemill import registry
from tidemill.component import Check, Outcome, Sink, SinkConfig
from tidemill.model.delivery import Delivery, Tier

#: The smallest configuration of each sink that can be written to without a server.
SERVERLESS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "blackhole": lambda path: {},
    "files": lambda path: {"path": str(path)},
    "stdout": lambda path: {"path": str(path / "out")},
}
#: The rest are written to in their own test files, against a real server; nothing listens here.
UNREACHABLE: dict[str, dict[str, Any]] = {
    "starrocks": {"url": "http://127.0.0.1:9", "mysql_port": 9, "database": "d"},
    "clickhouse": {"host": "127.0.0.1", "port": 9, "connect_timeout_seconds": 0.5},
    "kafka": {"brokers": "127.0.0.1:9", "topic": "t", "delivery_timeout_seconds": 0.5},
    "pgstream": {"dsn": "postgresql://127.0.0.1:9/d", "stream": "s", "connect_timeout_seconds": 2},
    "postgres": {"dsn": "postgresql://127.0.0.1:9/d", "connect_timeout_seconds": 2},
    "redis": {"uri": "redis://127.0.0.1:9", "stream": "s"},
    "http": {"url": "http://127.0.0.1:9/", "deadline_seconds": 0.1},
    "nats": {"servers": ["nats://127.0.0.1:9"], "stream": "S", "subject": "s"},
    "s3": {"bucket": "lake", "endpoint": "http://127.0.0.1:9", "connect_timeout_seconds": 0.5},
}

SINKS = registry.names("sinks")


def make_sink(name: str, path: Path) -> Sink:
    kind = registry.load("sinks", name)
    options = SERVERLESS[name](path) if name in SERVERLESS else UNREACHABLE[name]
    sink: Sink = kind(kind.Config(id="s", **options))
    return sink


def fingerprint(path: Path) -> dict[str, str]:
    return {
        str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in path.rglob("*") if p.is_file()
    }


def test_every_registered_sink_stands_in_this_suite() -> None:
    assert set(SINKS) == SERVERLESS.keys() | UNREACHABLE.keys()


@pytest.mark.parametrize("name", SINKS)
def test_its_config_extends_the_common_one_and_every_field_is_described(name: str) -> None:
    config = registry.load("sinks", name).Config
    assert issubclass(config, SinkConfig)
    undescribed = [field for field, info in config.model_fields.items() if not info.description]
    assert not undescribed, f"fields without a description: {undescribed}"


@pytest.mark.parametrize("name", SINKS)
def test_it_says_its_tier(name: str, tmp_path: Path) -> None:
    assert make_sink(name, tmp_path).tier in set(Tier)


@pytest.mark.parametrize("name", SINKS)
def test_doctor_gives_checks_with_a_fix_for_each_that_did_not_pass_and_raises_nothing(
    name: str, tmp_path: Path
) -> None:
    sink = make_sink(name, tmp_path)
    checks = list(sink.doctor())
    sink.close()
    assert all(isinstance(check, Check) for check in checks)
    assert all(check.fix for check in checks if check.outcome is not Outcome.PASS)


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_that_was_never_used_can_be_closed_twice(name: str, tmp_path: Path) -> None:
    sink = make_sink(name, tmp_path)
    sink.close()
    sink.close()


@pytest.mark.parametrize("name", SERVERLESS)
def test_an_empty_delivery_is_written_and_gives_a_receipt(name: str, tmp_path: Path) -> None:
    sink = make_sink(name, tmp_path)
    receipt = sink.write(Delivery("shop", "orders", 5, 5, 1, 2, lambda: iter(())))
    sink.close()
    assert (receipt.sink, receipt.lane, receipt.events, receipt.ok) == ("s", 1, 0, True)


@pytest.mark.parametrize("name", SERVERLESS)
def test_a_receipt_counts_every_event_of_the_delivery(name: str, tmp_path: Path) -> None:
    sink = make_sink(name, tmp_path)
    receipts = [sink.write(d) for d in make_deliveries(make_events(40), 0, 40)]
    sink.close()
    assert [(r.lane, r.events + r.skipped) for r in receipts] == [(0, 20), (1, 20)]
    assert all(r.ok and r.bytes > 0 for r in receipts)


@pytest.mark.parametrize("name", SERVERLESS)
def test_a_replay_is_safe_and_for_the_effectively_once_tier_changes_nothing(name: str, tmp_path: Path) -> None:
    batch = make_deliveries(make_events(40), 0, 40)
    first = make_sink(name, tmp_path)
    for delivery in batch:
        first.write(delivery)
    first.close()
    before = fingerprint(tmp_path)
    for again in (first, make_sink(name, tmp_path)):  # the same worker, and one after a restart
        for delivery in batch:
            assert again.write(delivery).ok
        again.close()
    if first.tier is Tier.EFFECTIVELY_ONCE:
        assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("name", SERVERLESS)
def test_a_dead_letter_that_comes_again_is_taken_behind_later_events_and_moves_nothing(
    name: str, tmp_path: Path
) -> None:
    """Sinks that need a server are asked the same in their own files."""
    events = make_events(60)
    first = make_sink(name, tmp_path)
    for delivery in make_deliveries(events, 0, 40):
        first.write(delivery.without([7]))
    first.close()
    before = fingerprint(tmp_path)
    (letter,) = make_deliveries(events, 7, 8, lanes=1)
    replaying = make_sink(name, tmp_path)
    receipt = replaying.write(dataclasses.replace(letter, redelivered=True))
    replaying.close()
    assert (receipt.events, receipt.skipped) == (1, 0)
    if first.tier is Tier.EFFECTIVELY_ONCE:
        assert before.items() <= fingerprint(tmp_path).items(), "what was there stays as it was"
    second = make_sink(name, tmp_path)
    assert [second.write(d).events for d in make_deliveries(events, 40, 60)] == [10, 10]
    second.close()
