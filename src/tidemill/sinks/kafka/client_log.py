"""Where the clients of confluent_kafka say what they see. Whatever matters comes back as an error too."""

from __future__ import annotations

import logging

_log = logging.getLogger("tidemill.sinks.kafka")


class ClientLog:
    """For `logger=`. To librdkafka each failed attempt to connect is an error, ten times a second; to us it is a
    detail."""

    def log(self, level: int, text: str, *values: object) -> None:
        _log.debug(text, *values)
