"""MySQL and MariaDB sources for tests: on a database, with an account, and a reader of what the stream sends."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.lab.servers.mysql_family import Server
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.mysql import MysqlConfig, MysqlSource

_ids = itertools.count(1)
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(100))"


def config(dsn: str, *tables: str, **options: Any) -> MysqlConfig:
    # Replicas of one server must differ in server_id, which is made from the id.
    return MysqlConfig(**{"id": f"source-{next(_ids)}", "dsn": dsn, "tables": tables, "ssl_mode": "disabled"} | options)


@contextmanager
def opened(
    settings: MysqlConfig, after: str | None = None, confirmed: str | None = None, own: str = ""
) -> Iterator[MysqlSource]:
    """`own` is the pipeline's uuid. By default it is made from the source's id, so that it is the same pipeline each
    time: the server may not have noticed yet that the last stream ended."""
    source = MysqlSource(settings)
    with tempfile.TemporaryDirectory() as folder:
        schemas = SchemaRegistry(Path(folder) / "registry.sqlite")
        schemas.remember("mysql-replica-uuid", (own or str(uuid.uuid5(uuid.NAMESPACE_URL, settings.id))).encode())
        try:
            source.open(
                Position(after) if after else None, schemas, confirmed=Position(confirmed) if confirmed else None
            )
            yield source
        finally:
            source.close()
            schemas.close()


@contextmanager
def account(server: Server, *grants: str, how: str = "") -> Iterator[tuple[str, str]]:
    """A new account with password `secret`, and its grants: (user, dsn)."""
    user = f"u{next(_ids)}"
    identified = how or "IDENTIFIED BY 'secret'"
    server.query(f"CREATE USER '{user}'@'%' {identified}")
    try:
        for grant in grants:
            server.query(f"GRANT {grant} TO '{user}'@'%'")
        yield user, server.dsn(user=user, password="secret")
    finally:
        server.query(f"DROP USER '{user}'@'%'")


def events(source: MysqlSource, until: bytes, seconds: float = 20) -> bytes:
    """What the stream sends, up to where `until` stands in it."""
    deadline, seen = time.monotonic() + seconds, b""
    while until not in seen:
        assert time.monotonic() < deadline, f"{until!r} did not come"
        view = source.read(0.1)
        seen += bytes(view)
        source.consumed(len(view))
    return seen


def purge(server: Server, seconds: float = 20, *, rotate: bool = True) -> str:
    """Removes all binlog files but a new one, or the newest, whose name it answers. A file that a reader or an open
    transaction needs is kept by the server, so it may take several tries."""
    if rotate:
        server.query("FLUSH BINARY LOGS")
    deadline = time.monotonic() + seconds
    while len(files := server.query("SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline, "the binlog files do not go away"
        with contextlib.suppress(Exception):
            server.query(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        time.sleep(0.02)
    return str(files[-1][0])
