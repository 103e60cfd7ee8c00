"""A TCP proxy with a script: it loses answers, cuts connections, falls silent, and refuses new ones, on demand."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_GULP = 1 << 16


class Proxy:
    """Forwards to `target`. While `lose_answers` is positive, the next answer of a connection that already carried
    requests is swallowed and the connection is cut: the server did the work, the client never hears of it."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        self.target = target
        self.lost = 0
        self._to_lose = 0
        self._after = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._stopping = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    def lose_answers(self, count: int, *, after_bytes: int) -> None:
        """The next `count` answers to connections that have sent at least `after_bytes` are lost."""
        with self._lock:
            self._to_lose, self._after = count, after_bytes

    def cut(self) -> None:
        """Ends every connection now."""
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Nothing passes any more, and nobody is told: a server that was stopped, or whose network swallows all.
        Connections are still taken, as the kernel of a stopped server takes them."""
        self._flowing.clear()

    def release(self) -> None:
        """What was held goes on its way."""
        self._flowing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._flowing.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            sent = [0]
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, answers, sent), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool, sent: list[int]) -> None:
        try:
            while data := source.recv(_GULP):
                self._flowing.wait()
                if answers and self._loses(sent[0]):
                    break
                if not answers:
                    sent[0] += len(data)
                sink.sendall(data)
        except OSError:
            pass  # the other pump closed it
        finally:
            with self._lock:
                self._open -= {source, sink}
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _loses(self, sent: int) -> bool:
        with self._lock:
            if self._to_lose < 1 or sent < self._after:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True
