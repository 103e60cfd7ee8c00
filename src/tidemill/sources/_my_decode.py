"""The decoder of one connection: the binlog's events over the tables as they were, and refusals as our errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.component import Schemas
from tidemill.decoders.binlogplace import Place
from tidemill.model.change import Change
from tidemill.sources._my_connect import Session
from tidemill.sources._my_server import Server

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig


class StreamDecoder:
    """`place` is the end of the last transaction that was decoded."""

    def __init__(self, decoder: Any, config: MysqlConfig) -> None:
        self._decoder = decoder
        self._config = config

    @property
    def place(self) -> Place:
        raise NotImplementedError

    @property
    def consumed(self) -> int:
        raise NotImplementedError

    def feed(self, data: memoryview) -> Iterator[Change]:
        raise NotImplementedError


def decoder_of(
    db: Session, server: Server, place: Place, schemas: Schemas, config: MysqlConfig, *, fresh: bool, mark_events: int
) -> StreamDecoder:
    return StreamDecoder(None, config)
