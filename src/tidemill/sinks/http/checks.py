"""What `tidemill doctor` asks of a receiver: does it listen, and is its certificate trusted. Nothing is sent."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidemill.contracts import Check, Outcome
from tidemill.errors import Refused

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpConfig


def run_checks(config: HttpConfig) -> Iterator[Check]:
    split = urlsplit(config.url)
    host, secure = split.hostname or "", split.scheme == "https"
    place = (host, split.port or (443 if secure else 80))
    try:
        with socket.create_connection(place, config.connect_timeout_seconds) as connection:
            if secure:
                connection.settimeout(config.connect_timeout_seconds)
                with config.tls.context().wrap_socket(connection, server_hostname=host):
                    pass
    except ssl.SSLError as error:
        yield Check("tls", Outcome.FAIL, error.reason or "the handshake failed", "Check the tls settings and the url.")
        return
    except Refused as error:
        yield Check("tls", Outcome.FAIL, error.what, error.fix)
        return
    except OSError as error:
        yield Check("receiver", Outcome.FAIL, f"{host}: {error.strerror or error}", "Is it up, and is the url right?")
        return
    yield Check(
        "receiver",
        Outcome.PASS,
        f"{host} listens" + (", its certificate is trusted" if secure and config.tls.verify else ""),
    )
    if secure and not config.tls.verify:
        fix = "Give tls.ca_file instead of verify: false."
        yield Check("tls", Outcome.WARN, "anyone can pretend to be the receiver", fix)
    if not secure and (config.secret_headers or config.signing_secret):
        fix = "Use https, or keep it inside a trusted network."
        yield Check("secrets", Outcome.WARN, "secrets go over the network in plain text", fix)
