"""Files about pipeline documents."""

from __future__ import annotations

from pathlib import Path

import orjson

from tidemill.config import json_schema
from tidemill.errors import ConfigError


def write_schema(path: Path) -> None:
    """The JSON Schema of pipeline files, for editors."""
    path.write_bytes(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_document(path: Path) -> str:
    """A pipeline file as it is, to be sent to a server."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8 text", where=str(path), fix=f"Byte {error.start} is wrong.") from error
