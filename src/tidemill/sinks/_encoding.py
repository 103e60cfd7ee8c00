"""The settings of sinks that send events in a wire format, and the encoder they ask for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.component import Format, SinkConfig
from tidemill.formats.json import JsonFormat

WireFormat = Literal["json", "avro", "protobuf", "arrow", "parquet"]


class EncodedSinkConfig(SinkConfig):
    """A sink that takes fewer formats narrows `format` in its own model."""

    format: WireFormat = Field(default="json", description="Wire format of an event.")
    envelope: Literal["native", "debezium", "cloudevents"] = Field(
        default="native", description="Shape of an event: docs/events.md."
    )


def encoder(config: EncodedSinkConfig) -> Format:
    """Made once per sink: formats keep what they compiled per table version."""
    return JsonFormat(envelope=config.envelope)
