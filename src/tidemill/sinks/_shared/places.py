"""Addresses of destinations, written one way: how sinks say what they occupy (contracts.Place)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from tidemill.contracts import Place


def folder(path: str) -> Place:
    """A directory or a URI with all below it."""
    if "://" not in path or path.startswith("file://"):
        return Place(f"file://{os.path.realpath(os.path.expanduser(path.removeprefix('file://')))}/")
    split = urlsplit(path)
    if split.scheme == "s3":
        endpoint = dict(parse_qsl(split.query)).get("endpoint_override", "")
        return bucket(split.hostname or "", split.path, endpoint)
    return Place(f"{split.scheme}://{split.netloc.rpartition('@')[2]}/{split.path.strip('/')}/")


def bucket(name: str, prefix: str, endpoint: str = "") -> Place:
    where = f"{endpoint.partition('://')[2] or endpoint}/" if endpoint else ""
    inside = prefix.strip("/")
    return Place(f"s3://{where}{name}/{inside}/" if inside else f"s3://{where}{name}/")


def hosts(addresses: Iterable[str], port: int) -> str:
    """Of a cluster, in any order."""
    return ",".join(sorted({_host(address.strip(), port) for address in addresses if address.strip()}))


def database(dsn: str) -> str:
    """Host, port and name of a PostgreSQL database."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError:  # the sink says what is wrong with it
        return ""
    names = str(given.get("host") or given.get("hostaddr") or "127.0.0.1").split(",")
    port = str(given.get("port") or 5432).partition(",")[0]
    name = given.get("dbname") or given.get("user") or ""
    return f"{hosts(names, int(port) if port.isdigit() else 5432)}/{name}"


def _host(address: str, port: int) -> str:
    split = urlsplit(address if "://" in address else f"//{address}")
    name = (split.hostname or address).lower()
    try:
        found = split.port or port
    except ValueError:
        found = port
    return f"{'127.0.0.1' if name == 'localhost' else name}:{found}"
