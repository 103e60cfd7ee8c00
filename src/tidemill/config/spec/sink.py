"""A sink in a document: one of `sinks:`, or the one that drift is sent to."""

from __future__ import annotations

from pydantic import Field, SerializeAsAny

from tidemill.contracts import Config, SinkConfig


class SinkSpec(Config):
    type: str = Field(description="Which kind of destination.")
    config: SerializeAsAny[SinkConfig] = Field(description="Settings of this type of sink.")
