"""Whether a query's server is the one that was captured, before anything is said of its slot and publication.

The same comparison is made again over the replication connection, with the timeline (`witness`): this one is asked
first, because at another server everything of ours is missing, and a recovery there would be the wrong way out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from tidemill.contracts import Schemas
from tidemill.errors import PositionLost
from tidemill.sources.postgres import witness

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

Recall = Callable[[str], bytes | None]


def system_identifier(db: psycopg.Connection) -> str:
    """Empty where the role may not ask: by default everybody may."""
    try:
        row = db.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return ""
    return str(row[0]) if row else ""


def other_server(db: psycopg.Connection, recall: Recall) -> str:
    """Says so if this is another server than the one that was captured, else empty."""
    memory = witness.recall(recall)
    found = system_identifier(db) if memory is not None else ""
    if memory is None or not found or found == memory.server.system:
        return ""
    place = f"{db.info.host}:{db.info.port}/{db.info.dbname}"
    return (
        f"{place} is another server than the one that was captured: its system identifier is {found}, not"
        f" {memory.server.system}"
    )


def check(db: psycopg.Connection, config: PostgresConfig, recall: Recall) -> None:
    if what := other_server(db, recall):
        raise PositionLost(what, where=config.where, fix=witness.RESTORED)


def begin_anew(db: psycopg.Connection, config: PostgresConfig, schemas: Schemas) -> None:
    """An operator accepted the gap, and maybe another server: from here on it is this one."""
    witness.begin(schemas, config, system_identifier(db))
