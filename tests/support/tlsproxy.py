"""TLS in front of a server that speaks plain text: what a sink says over TLS is tested with it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from types import TracebackType

from tidemill.lab.servers.tls import Certificates

_GULP = 1 << 16


class TlsProxy:
    """Listens at `port` with this certificate and forwards to `target`. One event loop, for an SSL object must not be
    read and written by two threads at once."""

    def __init__(self, target: int, certificates: Certificates) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls proxy")
        self.port = 0

    def __enter__(self) -> TlsProxy:
        self._loop.set_exception_handler(lambda *_: None)  # handshakes that a client breaks off are what is tested
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        self._server.close()
        pumps = asyncio.all_tasks() - {asyncio.current_task()}
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one of the two ends hung up
        while data := await reader.read(_GULP):
            writer.write(data)
            await writer.drain()
    writer.close()
