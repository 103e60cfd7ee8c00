"""Since when event triggers tell each change of a table, as far as is known: from there on the catalog, which may be
ahead of the stream, need not be asked which column is which.

note(…)     by the setup, when the triggers are there
since(…)    by a connection
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson
import psycopg

from tidemill.contracts import Schemas
from tidemill.sources.postgres.ddl_trigger import COMMANDS, DROPS
from tidemill.sources.postgres.errors import translate
from tidemill.sources.postgres.resume import wal_end

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

_NOTED = "postgres.triggered"
# A row's xmin is the last statement about its trigger.
_MADE = "SELECT string_agg(oid || ' ' || xmin, ', ' ORDER BY evtname) FROM pg_event_trigger WHERE evtname IN (%s, %s)"


def note(db: psycopg.Connection, config: PostgresConfig, schemas: Schemas) -> None:
    """Triggers that were made or altered since the last time tell everything only from now on."""
    with translate(config.where):
        row = db.execute(_MADE, [COMMANDS, DROPS]).fetchone()
        made, lsn = (row[0] if row else None) or "", wal_end(db)
    document = schemas.recall(_NOTED)
    if document is None or orjson.loads(document)["made"] != made:
        schemas.remember(_NOTED, orjson.dumps({"made": made, "since": lsn}))


def since(schemas: Schemas) -> int:
    """Beyond every position where it is not known."""
    document = schemas.recall(_NOTED)
    return int(orjson.loads(document)["since"]) if document else sys.maxsize
