"""`COPY … TO STDOUT` over a bare socket: frames in large reads, decoded a column at a time.

libpq hands out one row a call, 3.6 µs each; the frames of a whole buffer are found by one kernel.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator

import numpy as np

from tidemill.decoders.pgoutput import CopyTextDecoder, RowMemory
from tidemill.errors import ConnectionLost
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.sources.postgres.stream import server_message

_BUFFER = 8 << 20
_HEADER = 5
# The kernel wakes us when so much is there, or after so long: server and reader change places less often.
_WAKE_BYTES, _GATHER_MILLISECONDS, _LONGEST_MILLISECONDS = 256 << 10, 2, 50


class CopyMemory:
    """What a COPY's bytes and what is noted of its rows are kept in."""

    def __init__(self) -> None:
        self.buffer = np.empty(_BUFFER, np.uint8)
        self.rows: RowMemory | None = None


class CopyOut:
    """A logged-in socket that sends the answer to one COPY. `timeout`: seconds for which the server may be silent.
    `memory` is what another one had, whose blocks are all taken: new pages cost time. `idle`: nothing of an answer is
    still to come."""

    def __init__(
        self, sock: socket.socket, unread: bytes, where: str, timeout: float, memory: CopyMemory | None = None
    ) -> None:
        self._sock, self._where, self._timeout = sock, where, timeout
        sock.settimeout(timeout)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._memory = memory or CopyMemory()
        self._buffer = self._memory.buffer
        self._end = len(unread)
        self._buffer[: self._end] = np.frombuffer(unread, np.uint8)
        self._at = 0
        self.idle = True

    def blocks(self, command: str, table: Table) -> Iterator[Block]:
        """The rows of the COPY, in blocks of at most the buffer's size (a larger row makes it grow)."""
        self.idle = False
        text = command.encode() + b"\0"
        try:
            self._sock.sendall(b"Q" + struct.pack(">I", len(text) + 4) + text)
            self._wait_for(_WAKE_BYTES)
        except OSError as error:
            raise ConnectionLost(f"the connection broke before a chunk was read: {error}", where=self._where) from error
        self._sock.setblocking(False)
        decoder = CopyTextDecoder(table, self._memory.rows)
        self._memory.rows = decoder.memory
        while True:
            self._at, status = decoder.scan(self._buffer, self._end, self._at)
            if status == decoder.OTHER and (frame := self._frame()) is not None:
                if frame == "Z":
                    break
                continue
            full = self._end == self._limit
            if status == decoder.FULL or (full and decoder.noted):
                block = decoder.take(self._buffer)
                assert block is not None
                yield block
                self._move()
            else:
                self._receive()
        self._wait_for(1)  # whoever asks next
        self._sock.settimeout(self._timeout)
        self.idle = True
        if (block := decoder.take(self._buffer)) is not None:
            yield block

    def _wait_for(self, count: int) -> None:
        if not isinstance(self._sock, ssl.SSLSocket):  # whose records are no bytes of ours
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    @property
    def _limit(self) -> int:
        """Kernels read some bytes more than there are."""
        return len(self._buffer) - CopyTextDecoder.ROOM

    def _frame(self) -> str | None:
        """Passes over the frame that is no row; None while it is not whole."""
        have = self._buffer[self._at : self._end]
        size = 1 + int.from_bytes(have[1:_HEADER].tobytes(), "big")
        if len(have) < _HEADER or len(have) < size:
            return None
        kind, body = chr(have[0]), have[_HEADER:size].tobytes()
        self._at += size
        if kind not in "HcCZ":  # CopyOutResponse, CopyDone, CommandComplete, ReadyForQuery
            server_message(kind, body, self._where)
        return kind

    def _move(self) -> None:
        """What is not decoded yet goes to the buffer's beginning."""
        rest = self._end - self._at
        self._buffer[:rest] = self._buffer[self._at : self._end].copy()
        self._at, self._end = 0, rest

    def _receive(self) -> None:
        if self._end == self._limit:
            if self._at:
                self._move()
            else:
                self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        room = memoryview(self._buffer)[self._end : self._limit]  # type: ignore[arg-type]
        deadline, pause = time.monotonic() + self._timeout, _GATHER_MILLISECONDS
        while True:
            try:
                count = self._sock.recv_into(room)
                break
            except (BlockingIOError, ssl.SSLWantReadError) as error:
                if time.monotonic() > deadline:
                    what = f"the server sent nothing of a chunk for {self._timeout:.0f} s"
                    raise ConnectionLost(what, where=self._where) from error
                self._poll.poll(pause)
                pause = min(2 * pause, _LONGEST_MILLISECONDS)
            except OSError as error:
                what = f"the connection broke while a chunk was read: {error}"
                raise ConnectionLost(what, where=self._where) from error
        if not count:
            raise ConnectionLost("the server closed the connection while a chunk was read", where=self._where)
        self._end += count
