"""Encodes every event, then forgets it: for benches, and for running a pipeline without a destination."""

from __future__ import annotations

from typing import ClassVar

from tidemill.contracts import BaseSink, Capabilities, SinkConfig
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder
from tidemill.sinks._shared.lines import Encoding


class BlackholeConfig(EncodedSinkConfig):
    pass


class BlackholeSink(BaseSink[BlackholeConfig]):
    """Counts over its life what its receipts say one by one."""

    Config: ClassVar[type[SinkConfig]] = BlackholeConfig
    mechanism: ClassVar[str] = "Nothing is kept."
    capabilities = Capabilities(formats=EVERY_FORMAT)
    config: BlackholeConfig
    tier: ClassVar[Tier] = Tier.AT_LEAST_ONCE

    def __init__(self, config: BlackholeConfig) -> None:
        super().__init__(config)
        self._format = encoder(config)
        self.events = 0
        self.bytes = 0

    def write(self, delivery: Delivery) -> Receipt:
        encoding = Encoding(delivery, self._format)
        for block in delivery:
            for _ in encoding.pieces(block):
                pass
        self.events += encoding.events
        self.bytes += encoding.bytes
        return encoding.receipt(self.config.id)

    def close(self) -> None:
        pass


component = BlackholeSink
