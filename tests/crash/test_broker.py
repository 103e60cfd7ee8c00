"""A Kafka broker that goes away under load and returns: nothing is lost; with `exactly_once` nothing is there twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.actors import RunActor, delivered_offset, on_stage, uncounted_changes, wait_for, write_pipeline
from tests.crash.delivered import from_kafka
from tests.crash.postgres import PostgresHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load
from tests.servers.kafka import create_topic
from tests.support.seed import choose
from tidemill.lab.servers.kafka import Broker

_MODES = {"exactly-once": True, "at-least-once": False}


@pytest.mark.parametrize("mode", choose("broker", [*_MODES]))
def test_a_broker_that_goes_away_and_returns_costs_no_event(
    source: PostgresHarness,
    evidence: Path,
    private_kafka: Broker,
    topic: str,
    mode: str,
    account: Callable[..., None],
) -> None:
    create_topic(private_kafka.bootstrap, topic)
    exactly_once = _MODES[mode]
    sink = {
        "id": "kafka", "brokers": private_kafka.bootstrap, "topic": topic, "exactly_once": exactly_once,
        "delivery_timeout_seconds": 10.0,
    }  # fmt: skip
    document = write_pipeline(evidence, source.source("proof"), [{"type": "kafka", "config": sink}])
    run, luck = RunActor(evidence, document), Random(31)
    with on_stage(run):
        run.begin(source)
        with Load(source, seed=31, pause=0.08, rows_per_second=800).running():
            wait_for(lambda: delivered_offset(run.pipeline) > 0, 120, lambda: f"nothing came:\n{run.output[-5000:]}")
            private_kafka.stop(kill=True)
            time.sleep(3)
            private_kafka.start()
            time.sleep(2)
            # A transaction that a killed worker left open must not come through, nor hold up what follows.
            wait_for(lambda: run.kill("worker", luck), 180, "no worker to kill")
            time.sleep(1)
            private_kafka.stop()
            time.sleep(1)
            run.kill("driver", luck)
            private_kafka.start()
            run.start()
            time.sleep(1)
        expected = source.tally().total()
        wait_for(
            lambda: delivered_offset(run.pipeline) >= expected + uncounted_changes(run.pipeline, source), 180,
            lambda: f"{delivered_offset(run.pipeline)} of {expected} delivered:\n{run.output[-5000:]}",
        )  # fmt: skip
        assert run.stop() == 0, run.output[-5000:]
    replay = Replay(source.keys, counts_ddl=source.COUNTS_DDL)
    events, unordered = from_kafka(private_kafka.bootstrap, topic)
    replay.take(events)
    found = unordered + replay.compare(source)
    assert not found, "\n".join(found[:20])
    account(kills=dict(run.kills), events=replay.events, duplicates=replay.duplicates)
    if exactly_once:
        assert replay.duplicates == 0
