"""A NATS connection with its event loop in a thread of its own, so that pings are answered between batches too."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr

from tidemill.errors import DeliveryError, Refused
from tidemill.sinks.nats.errors import explain_errors

if TYPE_CHECKING:
    from tidemill.sinks.nats import NatsConfig

ResultT = TypeVar("ResultT")


class NatsClient:
    """Connected when made. It does not reconnect: a failed sink is thrown away, and its successor looks anew."""

    def __init__(self, config: NatsConfig) -> None:
        import nats  # noqa: F401  here, before there are two threads: both would import it, each waiting for the other

        self._config = config
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._complaint = ""
        self._asked = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats-{config.id}", daemon=True)
        self._thread.start()
        try:
            self.nc, self.js, self._inbox = self.run(self._connect())
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs it on the loop and waits for it; errors of the library become ours."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with explain_errors(self._config.where, lambda: self._complaint):
            return future.result()

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str], *, answered: bool
    ) -> asyncio.Future[bytes] | None:
        """Sends; with `answered`, the future brings the stream's acknowledgement."""
        if not answered:
            await self.nc.publish(subject, payload, headers=headers)
            return None
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[reply] = future
        await self.nc.publish(subject, payload, reply=reply, headers=headers)
        return future

    async def wait(self, answer: asyncio.Future[bytes]) -> bytes:
        return await asyncio.wait_for(answer, self._config.timeout_seconds)

    def close(self) -> None:
        with contextlib.suppress(DeliveryError, TimeoutError):  # a broken connection may fail to close; it is gone
            self.run(asyncio.wait_for(self.nc.close(), 5))
        self._end()

    async def _connect(self) -> tuple[Any, Any, str]:
        config = self._config
        secure = any(s.startswith(("tls://", "wss://")) for s in config.servers)
        connection = _connection(config)
        connecting = connection.connect(
            list(config.servers), name="tidemill", connect_timeout=config.connect_timeout_seconds,
            # 0 attempts would mean any number.
            allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.1,
            error_cb=self._complain, closed_cb=self._on_close,
            tls=config.tls.context() if secure or config.tls.ca_file else None, **_login(config),
        )  # fmt: skip
        try:
            await asyncio.wait_for(connecting, config.connect_timeout_seconds * len(config.servers) + 1)
        except BaseException:
            await _abandon(connection)
            raise
        inbox = connection.new_inbox()
        await connection.subscribe(f"{inbox}.*", cb=self._answer)
        return connection, connection.jetstream(timeout=config.timeout_seconds), inbox

    async def _answer(self, message: Any) -> None:
        future = self._waiting.pop(message.subject, None)
        if future is not None and not future.done():
            none_listens = message.headers is not None and message.headers.get("Status") == "503"
            future.set_result(b'{"error":{"err_code":503}}' if none_listens else message.data)

    async def _complain(self, error: Exception) -> None:
        self._complaint = str(error)

    async def _on_close(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection was closed"))
                future.exception()  # whoever still waits gets it; that nobody does is no reason for a log line

    def _end(self) -> None:
        async def rest() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(rest(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _abandon(connection: Any) -> None:
    """Ends a connection that was half made. `close` may wait for ever for one whose TLS handshake failed."""
    with contextlib.suppress(TimeoutError, OSError):
        await asyncio.wait_for(connection.close(), 1)
    writer = getattr(connection._transport, "_io_writer", None)
    if writer is not None and writer.transport is not None:
        writer.transport.abort()
        await asyncio.sleep(0)


def _login(config: NatsConfig) -> dict[str, Any]:
    given = {"user": config.user, "password": config.password, "token": config.token}
    options = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in given.items()
        if value is not None
    }
    if config.credentials_file is not None or config.nkey_seed is not None:
        options["nkeys_seed_str"] = "ours"  # makes the library ask `_setup_nkeys_connect`
    return options


def _connection(config: NatsConfig) -> Any:
    """A client that signs with `cryptography`, which we have anyway; the library would want a package for it."""
    from nats.aio.client import Client as Connection

    class SigningConnection(Connection):  # type: ignore[misc, unused-ignore]
        def _setup_nkeys_connect(self) -> None:
            if config.credentials_file is not None:
                jwt, seed = read_credentials(config.credentials_file)
                self._user_jwt_cb = lambda: bytearray(jwt.encode())
            else:
                assert config.nkey_seed is not None
                seed = config.nkey_seed.get_secret_value()
            signer = Signer(seed)
            self._public_nkey = signer.public
            self._signature_cb = signer

    return SigningConnection()


def read_credentials(file: Path) -> tuple[str, str]:
    """The JWT and the seed of a `.creds` file."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except OSError as error:
        raise Refused(
            f"the credentials file cannot be read: {error.strerror}", where=str(file), fix="Check credentials_file."
        ) from error
    starts = [i for i, line in enumerate(lines) if line.startswith("-----BEGIN")]
    if len(starts) != 2:
        raise Refused("the credentials file has no JWT and seed", where=str(file), fix="nsc generate creds makes one.")
    return lines[starts[0] + 1], lines[starts[1] + 1]


class Signer:
    """Signs the server's nonce with an nkey: an Ed25519 seed in base32, after two bytes of kind, before a checksum."""

    def __init__(self, seed: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
            self._key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
        except ValueError as error:
            raise Refused("the nkey seed is none", fix="It begins with SU and has 58 letters and digits.") from error

    @property
    def public(self) -> str:
        """The public key as servers list it: `U` and its base32, with a CRC-16."""
        raw = bytes([20 << 3]) + self._key.public_key().public_bytes_raw()
        return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")

    def __call__(self, nonce: str) -> bytes:
        return base64.b64encode(self._key.sign(nonce.encode()))
