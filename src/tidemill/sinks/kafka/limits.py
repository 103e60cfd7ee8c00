"""How large a message a topic takes: asked only when one was refused for its size."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.sinks.kafka.client_log import ClientLog

_TIMEOUT = 10.0


def largest_message(settings: Mapping[str, str], topic: str) -> int | None:
    """`max.message.bytes` of the topic; None if we may not look."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        admin = AdminClient(dict(settings), logger=ClientLog())
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result(_TIMEOUT)
        return int(found["max.message.bytes"].value)
    except (KafkaException, KeyError, ValueError, TypeError, TimeoutError):
        return None
