"""The connection between the driver and a standing lane (ADR 43): both ends prove that they know the run's token, then
exchange frames, and each sends a heartbeat so that the other notices when it is gone.

A frame is a length of four bytes, a kind of one byte, and a payload. Nothing heavy is imported here.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import orjson

from tidemill.net.buffered import keep_alive

BEAT, HELLO, DELIVER, END, RESULTS, FAILED, READ = (bytes([number]) for number in range(7))
"""Kinds: a heartbeat; a lane's first frame; of the driver: deliver this, return; of a lane: receipts, an error. Of the
driver to a reader of chunks: read these."""

BEAT_SECONDS = 1.0
DEAD_SECONDS = 15.0
"""An end that said nothing for so long is gone: its machine, its network, or a process that was stopped."""

SILENT_DRIVER_SECONDS = 120.0
"""The same of a driver, as its lanes see it, where the connection is whole. The kernel says when its machine or its
network is gone; a driver that gets no CPU, or is stopped, goes on with the lanes that it has."""

_HEADER = struct.Struct(">Ic")
_BEAT_FRAME = _HEADER.pack(0, BEAT)
_LARGEST = 1 << 30
_LARGEST_HELLO = 1024
_HANDSHAKE_SECONDS = 5.0
_NONCE_BYTES = 32


class Channel:
    """Frames over a socket. One thread receives; any thread may send. Both raise `OSError` once the other end is
    gone."""

    def __init__(self, sock: socket.socket, largest: int = _LARGEST) -> None:
        keep_alive(sock, DEAD_SECONDS)
        sock.settimeout(DEAD_SECONDS)
        self._sock = sock
        self.largest = largest
        self._sending = threading.Lock()
        self._unread = bytearray()
        self._ready = select.poll()
        self._ready.register(sock, select.POLLIN)
        self.last_heard = time.monotonic()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, kind: bytes, *pieces: bytes | memoryview) -> None:
        size = sum(len(piece) for piece in pieces)
        if size > _LARGEST:
            raise OSError(f"a message of {size} bytes to a standing lane is too large")
        with self._sending:
            self._sock.sendall(b"".join((_HEADER.pack(size, kind), *pieces)))

    def beat(self) -> None:
        """A heartbeat, unless more than that is on its way to the other end. Waits for nothing."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            with suppress(BlockingIOError):  # the other end has not read what it was sent
                sent = os.write(self._sock.fileno(), _BEAT_FRAME)
                if sent < len(_BEAT_FRAME):
                    self._sock.sendall(_BEAT_FRAME[sent:])
        finally:
            self._sending.release()

    def receive(self, seconds: float) -> tuple[bytes, bytes] | None:
        """The next frame, heartbeats included; None when none is complete within `seconds`."""
        deadline = time.monotonic() + seconds
        while (frame := self._take()) is None:
            left = max(0.0, deadline - time.monotonic())
            if not self._ready.poll(int(left * 1000 + 0.999)):
                return None
            if not (received := self._sock.recv(1 << 18)):
                raise ConnectionError("the other end closed the connection")
            self._unread += received
            self.last_heard = time.monotonic()
        return frame

    def close(self) -> None:
        self._sock.close()

    def _take(self) -> tuple[bytes, bytes] | None:
        if len(self._unread) < _HEADER.size:
            return None
        size, kind = _HEADER.unpack_from(self._unread)
        if size > self.largest:
            raise ConnectionError(f"a frame of {size} bytes came where at most {self.largest} are due")
        end = _HEADER.size + size
        if len(self._unread) < end:
            return None
        payload = bytes(self._unread[_HEADER.size : end])
        del self._unread[:end]
        return kind, payload


def welcome(sock: socket.socket, token: bytes) -> tuple[Channel, dict[str, Any]]:
    """The driver's side: the lane's hello, once it has proved that it knows the token. `OSError` if it does not."""
    channel = Channel(sock, _LARGEST_HELLO)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    channel.send(HELLO, nonce)
    kind, proof = _expect(channel)
    if kind != HELLO or not hmac.compare_digest(_proof(token, b"lane", nonce, proof[32:]), proof[:32]):
        raise ConnectionRefusedError("somebody who does not know the run's token called")
    channel.largest = _LARGEST
    hello: dict[str, Any] = orjson.loads(proof[32:])
    channel.send(HELLO, _proof(token, b"driver", bytes.fromhex(hello["nonce"]), b""))
    return channel, hello


def call(address: tuple[str, int], token: bytes, hello: dict[str, Any]) -> Channel:
    """The lane's side; it does not speak to who cannot prove to be the driver."""
    channel = Channel(socket.create_connection(address, _HANDSHAKE_SECONDS))
    try:
        _, challenge = _expect(channel)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        body = orjson.dumps(hello | {"nonce": nonce.hex()})
        channel.send(HELLO, _proof(token, b"lane", challenge, body), body)
        _, proof = _expect(channel)
        if not hmac.compare_digest(_proof(token, b"driver", nonce, b""), proof):
            raise ConnectionRefusedError("the driver does not know the run's token")
    except BaseException:
        channel.close()
        raise
    return channel


@contextmanager
def heartbeat(channel: Channel) -> Iterator[None]:
    """Beats from a thread of its own, so that a long delivery does not look like death."""
    over = threading.Event()

    def beat() -> None:
        try:
            while not over.wait(BEAT_SECONDS):
                channel.send(BEAT)
        except OSError:
            return  # who receives meets the same

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BEAT_SECONDS)


def _expect(channel: Channel) -> tuple[bytes, bytes]:
    frame = channel.receive(_HANDSHAKE_SECONDS)
    if frame is None:
        raise TimeoutError("the other end does not answer")
    return frame


def _proof(token: bytes, who: bytes, nonce: bytes, body: bytes) -> bytes:
    return hmac.digest(token, b"\0".join((who, nonce, body)), "sha256")
