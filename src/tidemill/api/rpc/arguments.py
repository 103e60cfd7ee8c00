"""What a request may say: protobuf lets every double, every timestamp and every string through."""

from __future__ import annotations

import math
import re
import uuid
from datetime import UTC, datetime
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tidemill.errors import ConfigError

_DOCUMENTS = frozenset({"document", "merge_patch_json"})
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


def check_seconds(value: float, where: str, *, most: float) -> float:
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ConfigError(
            f"{value} is no number of seconds that can be waited", where=where, fix=f"Give 0 to {most:.0f}."
        )
    return value


def check_text(value: str, where: str, *, longest: int) -> str:
    """No database keeps the character NUL."""
    if len(value) > longest or "\0" in value:
        raise ConfigError(
            "the text is too long" if len(value) > longest else "the text has the character NUL", where=where,
            fix=f"Give at most {longest} characters, none of them NUL.",
        )  # fmt: skip
    return value


def check_strings(request: Any) -> None:
    """All of a request, at any depth, for the character NUL. Of a document it is told by its line (posted.py)."""
    for field, value in request.ListFields():
        if field.name in _DOCUMENTS:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            for each in value if field.is_repeated else [value]:
                check_text(each, field.name, longest=len(each))
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                for each in (key, item):
                    check_text(str(each), field.name, longest=len(str(each)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                check_strings(each)


def check_token(value: str) -> str:
    """Of a pull."""
    try:
        return str(uuid.UUID(value))
    except ValueError as error:
        raise ConfigError("this is no token of a pull", where="token", fix="Send the one that Pull gave.") from error


def check_lsn(value: str) -> str:
    if not _LSN.fullmatch(value):
        raise ConfigError("this is no LSN", where="lsn", fix="Give one as PostgreSQL writes it: 16/B374D848.")
    return value


def read_time(value: Any, where: str) -> datetime:
    """Of a google.protobuf.Timestamp."""
    try:
        found: datetime = value.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigError("this is no time of the calendar", where=where, fix="Give a year of 1 to 9999.") from error
    return found
