"""What `tidemill doctor` asks of Kafka: are brokers there, may the topic be written, how large may a message be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Check, Outcome
from tidemill.errors import ConfigError
from tidemill.model.template import Template
from tidemill.sinks._shared.encoded import check_registry
from tidemill.sinks.kafka.client_log import ClientLog
from tidemill.sinks.kafka.probe import VARIABLE, choose
from tidemill.sinks.kafka.write import topic_name

if TYPE_CHECKING:
    from tidemill.sinks.kafka import KafkaConfig

_TIMEOUT = 10.0
_LOOKS = (1.0, 2.0, 7.0)  # seconds; between them what connections complain of may end the wait


def run_checks(config: KafkaConfig, topic: Template) -> Iterator[Check]:
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:
        yield Check("client", Outcome.FAIL, "confluent-kafka is not installed", "pip install 'tidemill[kafka]'")
        return
    complaints: list[Any] = []
    settings = {**config.connection_settings(), "error_cb": complaints.append}
    try:
        admin = AdminClient(settings, logger=ClientLog())
    except KafkaException as error:
        yield Check("client_conf", Outcome.FAIL, error.args[0].str(), "Mend client_conf.")
        return
    try:
        cluster = _ask_for_topics(admin, complaints)
    except KafkaException as error:
        reason = (complaints[0] if complaints else error.args[0]).str()
        fix = "Are the brokers up, and do security.protocol, sasl.* and ssl.* fit?"
        yield Check("brokers", Outcome.FAIL, f"{config.brokers}: {reason}", fix)
        return
    yield Check("brokers", Outcome.PASS, f"{len(cluster.brokers)} of cluster {cluster.cluster_id}")
    yield _way()
    broker = _broker_settings(admin, next(iter(cluster.brokers)))
    yield _topic(config, topic, cluster, broker)
    yield _size(config, broker)
    yield from check_registry(config)
    if config.exactly_once:
        there = config.positions_topic in cluster.topics
        yield Check(
            "positions topic", Outcome.PASS, f'"{config.positions_topic}" ' + ("exists" if there else "will be made")
        )


def _ask_for_topics(admin: Any, complaints: list[Any]) -> Any:
    """librdkafka would try until the time is over, also where a login was refused or no broker is there."""
    from confluent_kafka import KafkaError, KafkaException

    final = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN}
    for seconds in _LOOKS:
        try:
            return admin.list_topics(timeout=seconds)
        except KafkaException:
            admin.poll(0.1)  # brings what the connections complained of
            if seconds == _LOOKS[-1] or any(each.code() in final for each in complaints):
                raise
    raise AssertionError("the last look returns or raises")


def _way() -> Check:
    try:
        way = choose()
    except ConfigError as error:
        return Check("producer", Outcome.FAIL, error.what, error.fix)
    if way.direct:
        return Check("producer", Outcome.PASS, f"{way.reason}, called directly")
    fix = "Install another confluent-kafka if it has to be faster; what is delivered is the same."
    if os.environ.get(VARIABLE):
        fix = f"Unset {VARIABLE} if it has to be faster; what is delivered is the same."
    return Check("producer", Outcome.WARN, f"through confluent_kafka, a call per message: {way.reason}", fix)


def _topic(config: KafkaConfig, topic: Template, cluster: Any, broker: dict[str, str]) -> Check:
    creates = broker.get("auto.create.topics.enable") == "true"
    if not topic.is_literal:
        if creates:
            return Check("topic", Outcome.PASS, f'"{config.topic}": brokers create topics on first use')
        fix = "Create the topics before their first event, or set auto.create.topics.enable=true."
        return Check("topic", Outcome.WARN, f'"{config.topic}": brokers do not create topics', fix)
    name = topic_name(config.topic)
    if name in cluster.topics:
        return Check("topic", Outcome.PASS, f'"{name}" has {len(cluster.topics[name].partitions)} partitions')
    if creates:
        return Check("topic", Outcome.PASS, f'"{name}" will be created by the first message')
    fix = "Create the topic, or let brokers do it: auto.create.topics.enable=true."
    return Check("topic", Outcome.FAIL, f'"{name}" does not exist', fix)


def _size(config: KafkaConfig, broker: dict[str, str]) -> Check:
    ours = int(config.client_conf.get("message.max.bytes", 1_000_000))
    theirs = int(broker.get("message.max.bytes", 0))
    if not theirs:
        fix = "Grant DESCRIBE_CONFIGS on the cluster, or compare message.max.bytes by hand."
        return Check("message size", Outcome.WARN, "the broker's limit could not be read", fix)
    if ours > theirs:
        fix = f"Raise message.max.bytes of the brokers, or lower it in client_conf to {theirs}."
        return Check("message size", Outcome.WARN, f"client sends up to {ours} bytes, brokers take {theirs}", fix)
    return Check("message size", Outcome.PASS, f"events up to {ours} bytes")


def _broker_settings(admin: Any, broker: int) -> dict[str, str]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    try:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
    except KafkaException:  # not allowed to look: the checks then say so
        return {}
    return {name: entry.value for name, entry in found.items() if entry.value is not None}
