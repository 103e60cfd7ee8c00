"""From librdkafka's error codes to ours: what no retry can mend, and what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidemill.errors import DeliveryError, Refused
from tidemill.sinks.kafka.client import KafkaFailure


class Fenced(DeliveryError):
    """Another producer took over the lane's transactional id."""

    code = "kafka-fenced"


# Codes of librdkafka (negative) and of the broker (positive), with what the user can do.
SIZE = (
    "Raise message.max.bytes in client_conf and max.message.bytes of the topic (message.max.bytes of the broker); "
    "the broker's limit is for a compressed batch, so batch.size in client_conf must not exceed it."
)
_TOPIC = "Create the topic, or let brokers do it: auto.create.topics.enable=true."
_RIGHTS = (
    "Grant the client's principal WRITE and DESCRIBE on the topic (with exactly_once, also on the transactional id)."
)
_LOGIN = "Check security.protocol and the sasl.* and ssl.* settings in client_conf."
_REFUSED = {
    10: SIZE,  # MSG_SIZE_TOO_LARGE
    18: SIZE,  # RECORD_LIST_TOO_LARGE
    3: _TOPIC,  # UNKNOWN_TOPIC_OR_PART
    -188: _TOPIC,  # _UNKNOWN_TOPIC
    -190: _TOPIC,  # _UNKNOWN_PARTITION
    17: 'Kafka does not take this topic name; see the sink\'s "topic".',  # TOPIC_EXCEPTION
    29: _RIGHTS,  # TOPIC_AUTHORIZATION_FAILED
    31: _RIGHTS,  # CLUSTER_AUTHORIZATION_FAILED
    30: _RIGHTS,  # GROUP_AUTHORIZATION_FAILED
    53: _RIGHTS,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    33: _LOGIN,  # UNSUPPORTED_SASL_MECHANISM
    34: _LOGIN,  # ILLEGAL_SASL_STATE
    58: _LOGIN,  # SASL_AUTHENTICATION_FAILED
    -169: _LOGIN,  # _AUTHENTICATION
    43: "The broker is too old for the message format.",  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    44: "The cluster's policy forbids it.",  # POLICY_VIOLATION
    76: 'Choose another "compression".',  # UNSUPPORTED_COMPRESSION_TYPE
    87: "The broker found the record invalid; a compacted topic wants keys, and so a table with a primary key.",
    -186: "Check client_conf.",  # _INVALID_ARG
}
TOO_LARGE = frozenset({10, 18})  # MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE
_FENCED = {-144, 47, 90}  # _FENCED, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED


def explain(failure: KafkaFailure, problem: tuple[int, str], where: str) -> DeliveryError:
    """`problem` is what the connections last complained of: the reason behind a message that merely timed out."""
    if failure.code in _FENCED:
        return Fenced(
            f"another producer took over this lane: {failure.reason}", where=where,
            fix="Is the pipeline running twice? Names of pipelines that share a cluster must differ.",
        )  # fmt: skip
    if failure.code in _REFUSED:
        return Refused(f"Kafka refused: {failure.reason}", where=where, fix=_REFUSED[failure.code])
    reason = f"{failure.reason} ({problem[1]})" if problem[0] else failure.reason
    return DeliveryError(
        f"Kafka did not take the batch: {reason}", where=where, fix="Are the brokers up and reachable?"
    )


@contextlib.contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """Gives errors of confluent_kafka's consumers and admin clients the same treatment."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        raise explain(KafkaFailure(cause.code(), cause.str()), (0, ""), where) from error
    except TimeoutError as error:
        raise DeliveryError(str(error), where=where) from error
