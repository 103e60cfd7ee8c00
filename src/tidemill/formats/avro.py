"""Avro: under construction."""

from __future__ import annotations

from tidemill.formats._base import BaseFormat


class AvroFormat(BaseFormat):
    content_type = "application/avro"
    batch_content_type = "application/avro"
    suffix = ".avro"


component = AvroFormat
