"""The URI of a state store in PostgreSQL: what libpq takes, and our own `schema` in it."""

from __future__ import annotations

from urllib.parse import unquote

DEFAULT_SCHEMA = "tidemill_state"


def split_schema(uri: str) -> tuple[str, str]:
    """The URI as libpq takes it, and our schema."""
    address, _, query = uri.partition("?")
    schema, rest = DEFAULT_SCHEMA, []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name == "schema":
            schema = unquote(value)
        else:
            rest.append(pair)
    return "?".join([address, "&".join(rest)] if rest else [address]), schema
