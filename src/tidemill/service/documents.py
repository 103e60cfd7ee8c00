"""Files about pipeline documents."""

from __future__ import annotations

from pathlib import Path

import orjson

from tidemill.config import json_schema


def write_schema(path: Path) -> None:
    """The JSON Schema of pipeline files, for editors."""
    path.write_bytes(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
