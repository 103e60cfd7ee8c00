"""The probe of librdkafka, and the way through confluent_kafka's `produce()` where the probe says no.

What the sink promises is promised either way: the tests of keys, faults and transactions run over both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.kafka import consume
from tests.sinks.kafka import test_exactly_once, test_faults, test_formats, test_messages
from tests.sinks.kafka.support import delivery_of
from tests.support.blocks import make_block
from tidemill.contracts import Outcome
from tidemill.errors import ConfigError
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Op
from tidemill.sinks.kafka import KafkaConfig, KafkaSink, librdkafka, probe
from tidemill.sinks.kafka.library import LibraryProducer

Make = Callable[..., KafkaSink]


@pytest.fixture
def through_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe.VARIABLE, "library")
    assert probe.choose().producer is LibraryProducer


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    probe.find_problem.cache_clear()
    yield
    probe.find_problem.cache_clear()


class TestProbe:
    def test_the_installed_librdkafka_is_called_directly(self, fresh_probe: None) -> None:
        assert probe.find_problem() == ""
        assert probe.choose().producer is librdkafka.DirectProducer

    @pytest.mark.usefixtures("fresh_probe")
    @pytest.mark.parametrize(
        ("function", "answer", "problem"),
        [
            ("rd_kafka_version", 0x030000FF, "two librdkafkas are loaded"),
            ("rd_kafka_err2name", b"_SOMETHING", "error -184 is not _QUEUE_FULL"),
        ],
    )
    def test_a_library_that_answers_otherwise_is_not_called_directly(
        self, function: str, answer: Any, problem: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _answer(monkeypatch, function, answer)
        assert problem in probe.find_problem()
        assert probe.choose().producer is LibraryProducer

    @pytest.mark.usefixtures("fresh_probe")
    @pytest.mark.parametrize("number", [0x010500FF, 0x030000FF])
    def test_of_an_unknown_version_no_message_is_tried(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        _answer(monkeypatch, "rd_kafka_version", number)
        monkeypatch.setattr("confluent_kafka.libversion", lambda: ("x", number))
        monkeypatch.setattr(probe, "_round_trip", lambda lib: pytest.fail("it was tried"))
        assert "is not known to us" in probe.find_problem()

    @pytest.mark.usefixtures("fresh_probe")
    def test_a_missing_function_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load() -> Any:
            raise librdkafka.MissingSymbol("rd_kafka_produceva")

        monkeypatch.setattr(librdkafka, "load", load)
        assert probe.find_problem() == "this librdkafka does not show rd_kafka_produceva"

    @pytest.mark.usefixtures("fresh_probe")
    def test_a_struct_that_is_laid_out_otherwise_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if the key stood where the value is."""
        plain = probe._copy

        def shifted(lib: Any, message: Any) -> Any:
            report = plain(lib, message)
            return dataclasses.replace(report, key=report.value, value=report.key)

        monkeypatch.setattr(probe, "_copy", shifted)
        assert "other than they were sent" in probe.find_problem()

    @pytest.mark.usefixtures("fresh_probe")
    def test_arguments_that_librdkafka_takes_otherwise_are_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = librdkafka.MessageSlots.enqueue
        monkeypatch.setattr(
            librdkafka.MessageSlots, "enqueue", lambda self, h, m, partition: plain(self, h, m, partition + 1)
        )
        assert "other than they were sent" in probe.find_problem()

    def test_an_unknown_wish_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(probe.VARIABLE, "fast")
        with pytest.raises(ConfigError, match="TIDEMILL_KAFKA_PRODUCER is 'fast'"):
            probe.choose()


class TestBothWays:
    def test_send_the_same_bytes_to_the_same_places(
        self, kafka: Broker | Mock, topic: str, sinks: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        block = make_block(200, ops=[Op.INSERT, Op.UPDATE, Op.DELETE, Op.INSERT] * 50)
        found = {}
        for wish in ("library", "probe"):
            monkeypatch.setenv(probe.VARIABLE, wish)
            for option, value in (("envelope", "cloudevents"), ("headers", []), ("tombstones", True)):
                name = f"{topic}-{wish}-{option}"
                sinks(kafka, name, **{option: value}).write(delivery_of(block))
                found[wish, option] = sorted(
                    (m.partition(), m.offset(), m.key(), m.value(), m.headers()) for m in consume(kafka.bootstrap, name)
                )
        for option in ("envelope", "headers", "tombstones"):
            assert len(found["probe", option]) >= 200
            assert found["library", option] == found["probe", option]

    def test_doctor_says_which_one_it_is_and_why(
        self, kafka: Broker | Mock, topic: str, sinks: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look() -> Any:
            return next(check for check in sinks(kafka, topic).doctor() if check.name == "producer")

        assert look().outcome is Outcome.PASS
        assert "called directly" in look().detail
        monkeypatch.setattr(probe, "find_problem", lambda: "this librdkafka does not show rd_kafka_produceva")
        assert look().outcome is Outcome.WARN
        assert "does not show rd_kafka_produceva" in look().detail
        monkeypatch.setenv(probe.VARIABLE, "library")
        assert f"Unset {probe.VARIABLE}" in look().fix


@pytest.mark.usefixtures("through_the_library")
class TestLibrary:
    """The essentials of test_messages.py and test_formats.py again."""

    def test_the_probe_is_not_asked(self, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
        sink = sinks(kafka, topic)
        assert sink.write(delivery_of(make_block(3))).events == 3
        assert isinstance(sink._producer, LibraryProducer)
        assert {json.loads(m.key())["id"] for m in consume(kafka.bootstrap, topic)} == {0, 1, 2}

    def test_says_what_is_wrong_with_a_client_setting(self) -> None:
        sink = KafkaSink(KafkaConfig(id="k", brokers="b:1", topic="t", client_conf={"linger.hs": "1"}))
        with pytest.raises(ConfigError, match=r"linger\.hs"):
            sink.write(delivery_of(make_block(1)))

    messages = test_messages.TestMessages
    test_may_be_more_than_the_client_holds_at_once = messages.test_may_be_more_than_the_client_holds_at_once
    test_go_where_a_java_client_would_send_their_key = messages.test_go_where_a_java_client_would_send_their_key
    test_of_one_key_are_in_one_partition_in_order = messages.test_of_one_key_are_in_one_partition_in_order
    test_have_no_key_when_the_table_has_none = messages.test_have_no_key_when_the_table_has_none
    test_follow_a_column_row_by_row = test_messages.TestTopics.test_follow_a_column_row_by_row

    test_a_sink_used_before_a_fork_works_in_the_child = (
        test_faults.TestFaults.test_a_sink_used_before_a_fork_works_in_the_child
    )
    test_missing_topics_are_refused = test_messages.TestTopics.test_missing_where_nobody_creates_them_are_refused

    too_large = test_formats.TestTooLarge
    test_too_large_for_the_client = (
        too_large.test_events_beyond_the_clients_limit_are_named_and_the_rest_can_go_without_them
    )
    test_too_large_for_the_topic = (
        too_large.test_events_beyond_the_topics_limit_are_named_although_the_broker_refuses_a_whole_batch
    )


@pytest.mark.usefixtures("through_the_library")
class TestLibraryExactlyOnce:
    exact = test_exactly_once.TestExactlyOnce
    _needs_transactions = exact._needs_transactions
    test_a_replay_is_skipped = exact.test_a_replay_is_skipped_by_the_same_sink_and_by_a_new_one
    test_kill_9_around_the_commit_leaves_each_event_once = exact.test_kill_9_around_the_commit_leaves_each_event_once
    test_a_failed_transaction_leaves_nothing = exact.test_a_failed_transaction_leaves_nothing_and_the_retry_everything
    test_a_lane_that_moves_between_workers = exact.test_a_lane_that_moves_between_workers_goes_on_in_both
    test_a_producer_fenced_in_the_middle = exact.test_a_producer_fenced_in_the_middle_of_its_delivery_says_so
    test_a_plan_of_another_shape = exact.test_a_plan_of_another_shape_fences_the_workers_of_the_one_before_it
    test_a_broker_killed_in_a_transaction = exact.test_a_broker_killed_in_a_transaction_leaves_each_event_once


def _answer(monkeypatch: pytest.MonkeyPatch, function: str, answer: Any) -> None:
    """Lets one function of librdkafka answer otherwise."""
    real = librdkafka.load()

    class Other:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: answer) if name == function else getattr(real, name)

    monkeypatch.setattr(librdkafka, "load", Other)
