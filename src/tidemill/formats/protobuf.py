"""Protobuf: under construction."""

from __future__ import annotations

from tidemill.formats._base import BaseFormat


class ProtobufFormat(BaseFormat):
    content_type = "application/protobuf"
    batch_content_type = "application/protobuf; delimited=true"
    suffix = ".pb"


component = ProtobufFormat
