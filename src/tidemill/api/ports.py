"""Where servers and workers listen: addresses, the certificate of their ports, and the port of metrics."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from prometheus_client import CollectorRegistry

from tidemill.api.metrics_port import listen_metrics, tls_context
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.service.server.repeated import RepeatedTask
from tidemill.service.server.tokens import Tokens
from tidemill.service.server.watched_files import LOOK_SECONDS, WatchedFiles
from tidemill.telemetry import events

_LEAST_LEASE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def of(cls, text: str, option: str) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535 or not host:
            raise ConfigError(f'"{text}" is no address', where=option, fix="Write it as 127.0.0.1:8080.")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """All None: no TLS. `client_ca`: only clients with a certificate that it signed are served."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def check(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both files", where="--tls-cert, --tls-key", fix="Give both, or none.")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigError(
                "certificates of clients need TLS", where="--tls-client-ca", fix="Give --tls-cert and --tls-key too."
            )

    def context(self) -> ssl.SSLContext | None:
        if self.certificate is None or self.key is None:
            return None
        try:
            return tls_context(self.certificate, self.key, self.client_ca)
        except OSError as error:
            raise ConfigError(
                f"the TLS files cannot be used: {error.strerror or type(error).__name__}",
                where="--tls-cert, --tls-key, --tls-client-ca",
                fix="Give a certificate and its key in PEM, readable for this user.",
            ) from error


class LiveCertificate:
    """Looks at the files while a port is open: new connections get a certificate that has replaced the old one."""

    def __init__(self, files: TlsFiles, *contexts: ssl.SSLContext | None) -> None:
        self._files, self._contexts = files, [each for each in contexts if each is not None]
        paths = [each for each in (files.certificate, files.key) if each is not None]
        watched = WatchedFiles(paths, self._load)
        self._task = RepeatedTask(watched.look, seconds=LOOK_SECONDS, name="certificate")

    def __enter__(self) -> LiveCertificate:
        if self._contexts:
            self._task.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._task.close()

    def _load(self) -> None:
        try:
            fresh = self._files.context()  # both files are tried before any port uses them
        except ConfigError as error:
            events.fail("tls.not_reloaded", code=error.code, error=error.what, where=error.where, fix=error.fix)
            return
        if fresh is not None and self._files.certificate is not None:
            for each in self._contexts:
                each.load_cert_chain(self._files.certificate, self._files.key)
            events.emit("tls.reloaded", certificate=str(self._files.certificate))


def serve_metrics(
    address: Address,
    registry: CollectorRegistry,
    tls: ssl.SSLContext | None = None,
    callers: Tokens | str | None = None,
) -> tuple[str, Callable[[], None]]:
    """Their URL, and what ends the port. With tokens, or a secret, only for `callers` that have one, or know it."""
    try:
        port, stop = listen_metrics(address.host, address.port, registry, tls, callers)
    except OSError as error:
        raise EnvironmentProblem(
            f"the address {address} cannot be used: {error.strerror or error}", where="--metrics",
            fix="Choose another one, or end what uses it.",
        ) from error  # fmt: skip
    return f"{'https' if tls else 'http'}://{Address(address.host, port)}/metrics", stop


def check_lease_seconds(seconds: float) -> None:
    if seconds < _LEAST_LEASE_SECONDS:
        raise ConfigError(
            f"a lease of {seconds} seconds cannot be renewed in time",
            where="--lease-seconds",
            fix=f"Give {_LEAST_LEASE_SECONDS:.0f} or more: a slow state store must not stop pipelines.",
        )
