"""What sources have in common that read one connection's bytes: a replication socket and the decoder of its stream.

Such a source extends `ByteStreamSource` and says how bytes are read; `open` puts the decoder of the new connection into
place. A source without bytes (it polls, it reads a snapshot) gives `changes` itself.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from tidemill.contracts.component import Component
from tidemill.contracts.source import SourceConfig
from tidemill.model.change import Change


class Decoder(Protocol):
    """Turns one connection's bytes into changes. `consumed` is valid once `feed` is exhausted. No change has a position
    before the one that the connection was opened after: only the source understands positions. No block points into
    the bytes that were fed: the log may still write it when they are gone."""

    @property
    def consumed(self) -> int: ...

    @property
    def sent_at(self) -> int:
        """When the server sent the last of what was fed, by its own clock, nanoseconds since 1970; 0 if it does not
        say."""

    def feed(self, data: memoryview) -> Iterator[Change]: ...


SourceConfigT = TypeVar("SourceConfigT", bound=SourceConfig)
DecoderT = TypeVar("DecoderT", bound=Decoder)


class ByteStreamSource(Component[SourceConfigT], ABC, Generic[SourceConfigT, DecoderT]):
    """Reads, decodes, and drops what was decoded."""

    def __init__(self, config: SourceConfigT) -> None:
        super().__init__(config)
        self._decoder: DecoderT | None = None  # of the connection that `open` made last
        self.read_at = 0
        """When the last `read` returned, nanoseconds since 1970: decoding began then."""

    @property
    def decoder(self) -> DecoderT:
        if self._decoder is None:
            raise RuntimeError("open() was not called")
        return self._decoder

    @abstractmethod
    def read(self, wait: float = ...) -> memoryview:
        """All unconsumed bytes, the last frame maybe cut. Waits up to `wait` seconds for more; what it returns holds
        until the next call."""

    @abstractmethod
    def consumed(self, count: int) -> None:
        """The first `count` bytes of the last `read` are done with."""

    def changes(self, wait: float) -> Iterator[Change]:
        """Of one `read`. A frame that it cut stays in the buffer, and is whole with a later one."""
        decoder = self.decoder
        yield from decoder.feed(self._read(wait))
        self.consumed(decoder.consumed)

    def _read(self, wait: float) -> memoryview:
        data = self.read(wait)
        self.read_at = time.time_ns()
        return data
