"""The replication stream as bytes: read in large reads, answered with status updates.

It knows frames only at the edges (the answer to START_REPLICATION, and how long a frame is that does not fit);
the decoder walks them. Manual 54.4, "Streaming Replication Protocol".
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

from tidemill.errors import ConnectionLost, SourceError
from tidemill.net.buffered import BufferedReader, Pace
from tidemill.sources.postgres.errors import from_server
from tidemill.sources.postgres.lsn import format_lsn

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

_TWO_THOUSAND = 946_684_800  # seconds from 1970 to 2000, where PostgreSQL's clock starts
_HEADER = 5
_WINDOW = 64 << 10  # a WAL sender sends row by row: `Pace` says what that makes of a large one


class WalConnection:
    """One connection in streaming mode. Not for several threads."""

    def __init__(self, sock: socket.socket, where: str, unread: bytes, *, gather_seconds: float) -> None:
        self._where = where
        pace = Pace(gather=gather_seconds, window=_WINDOW)
        self._buffered = BufferedReader(sock, where, _frame_size, unread=unread, pace=pace)

    def begin(self, command: str, timeout: float) -> None:
        """Sends START_REPLICATION; returns when the server has switched to streaming."""
        text = command.encode() + b"\0"
        self._buffered.send(b"Q" + struct.pack(">I", len(text) + 4) + text)
        deadline = time.monotonic() + timeout
        while True:
            while (frame := self._first_frame()) is None:
                if time.monotonic() > deadline:
                    raise ConnectionLost("the server does not answer START_REPLICATION", where=self._where)
                self._buffered.more()
            kind, body = frame
            self.consumed(_HEADER + len(body))
            if kind == "W":  # CopyBothResponse
                return
            server_message(kind, body, self._where)

    def read(self, wait: float) -> memoryview:
        """All bytes not yet consumed, see `BufferedReader.read`."""
        return self._buffered.read(wait)

    @property
    def quiet(self) -> float:
        """Seconds for which nothing came while we listened."""
        return self._buffered.quiet

    def consumed(self, count: int) -> None:
        self._buffered.consumed(count)

    def status(self, written: int, flushed: int, *, reply: bool = False) -> None:
        """StandbyStatusUpdate. `flushed` 0 says nothing about flushing; `reply` asks for a keepalive at once."""
        clock = int((time.time() - _TWO_THOUSAND) * 1_000_000)
        self._buffered.send(b"d" + struct.pack(">IcQQQqB", 38, b"r", written, flushed, flushed, clock, reply))

    def close(self) -> None:
        """Says goodbye, so that the server frees the slot now and not at its next write."""
        with contextlib.suppress(OSError, ConnectionLost):
            self._buffered.send(b"c" + struct.pack(">I", 4) + b"X" + struct.pack(">I", 4))
        self._buffered.close()

    def _first_frame(self) -> tuple[str, bytes] | None:
        have = self._buffered.pending
        size = _frame_size(have)
        return (chr(have[0]), bytes(have[_HEADER:size])) if size and len(have) >= size else None


def _frame_size(have: memoryview) -> int:
    return 1 + int(struct.unpack_from(">I", have, 1)[0]) if len(have) >= _HEADER else 0


def server_message(kind: str, body: bytes, where: str) -> None:
    """A frame of the stream that is not CopyData: raises what it means, returns if it means nothing to us."""
    match kind:
        case "E":
            fields = _fields(body)
            raise from_server(fields.get("C", ""), fields.get("M", "the server reported an error"), where)
        case "N" | "S" | "A":  # notice, a parameter that changed, a notification
            return
        case "c" | "C" | "Z":  # CopyDone and the end of the command: the server is shutting down
            raise ConnectionLost("the server ended the stream", where=where)
        case _:
            raise SourceError(f'the server sent an unexpected frame of kind "{kind}"', where=where)


def _fields(body: bytes) -> dict[str, str]:
    """ErrorResponse and NoticeResponse: a letter and a text, each ended by a zero byte (manual 54.8)."""
    parts = (part.decode(errors="replace") for part in body.split(b"\0") if part)
    return {part[0]: part[1:] for part in parts}


def start_command(config: PostgresConfig, begin: int, version: int, *, streaming: bool) -> str:
    options = {
        "proto_version": "4" if version >= 160000 else "3" if version >= 150000 else "2",
        "publication_names": '"' + config.publication_name.replace('"', '""') + '"',
        "streaming": "on" if streaming else "off",
        "messages": "true",  # one of them may be ours; the decoder leaves out what nobody wants
    }
    if version >= 160000:
        options["origin"] = config.origin
    given = ", ".join("{} '{}'".format(name, value.replace("'", "''")) for name, value in options.items())
    return f'START_REPLICATION SLOT "{config.slot_name}" LOGICAL {format_lsn(begin)} ({given})'
