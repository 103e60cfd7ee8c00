"""What `tidemill doctor` asks of NATS: is JetStream there, does the stream take the subject, what is its limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.model.template import Template
from tidemill.sinks.nats import resume as stream

if TYPE_CHECKING:
    from tidemill.sinks.nats import NatsConfig


def run_checks(config: NatsConfig, subject: Template) -> Iterator[Check]:
    try:
        import nats  # noqa: F401
    except ImportError:
        yield Check("client", Outcome.FAIL, "nats-py is not installed", "pip install 'tidemill[nats]'")
        return
    from tidemill.sinks.nats.client import NatsClient

    try:
        client = NatsClient(config)
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix or "Check servers and the login.")
        return
    try:
        version = client.nc.connected_server_version
        yield Check("server", Outcome.PASS, f"NATS {version}, messages up to {client.nc.max_payload} bytes")
        yield from _stream(config, client)
    finally:
        client.close()


def _stream(config: NatsConfig, client: Any) -> Iterator[Check]:
    try:
        info = client.run(_find(client.js, config.stream))
    except DeliveryError as error:
        yield Check("jetstream", Outcome.FAIL, error.what, error.fix)
        return
    if info is None:
        if config.create_stream:
            yield Check("stream", Outcome.PASS, f'"{config.stream}" will be created')
        else:
            yield Check(
                "stream", Outcome.FAIL, f'"{config.stream}" does not exist', "Create it, or create_stream: true."
            )
        return
    subjects = ", ".join(info.config.subjects or [])
    yield Check("stream", Outcome.PASS, f'"{config.stream}" takes {subjects}')
    if config.exclusive and (retention := stream.retention(info)) != "limits":
        fix = "Use retention by limits, or exclusive: false."
        yield Check("retention", Outcome.FAIL, f"{retention} forgets what was consumed, and how far the sink came", fix)


async def _find(js: Any, name: str) -> Any:
    from nats.js.errors import NotFoundError

    try:
        return await js.stream_info(name)
    except NotFoundError:
        return None
