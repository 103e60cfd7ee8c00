"""Whether event triggers tell each change of a table, and since when, as far as is known: from there on the catalog,
which may be ahead of the stream, need not be asked which column is which.

ensure(…)         by the setup: the triggers are there
find_since(…)     by a connection
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
import psycopg

from tidemill.contracts import Schemas
from tidemill.sources.postgres import ddl_trigger
from tidemill.sources.postgres.errors import translate
from tidemill.sources.postgres.resume import wal_end

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig
    from tidemill.sources.postgres.publication.watch import PublicationWatch

_NOTED = "postgres.triggered"
# A row's xmin is the last statement about its trigger.
_MADE = "SELECT string_agg(oid || ' ' || xmin, ', ' ORDER BY evtname) FROM pg_event_trigger WHERE evtname IN (%s, %s)"


def ensure(
    db: psycopg.Connection, config: PostgresConfig, watch: PublicationWatch, schemas: Schemas | None
) -> tuple[str, ...]:
    """Says what was made, where they are asked for. Those that were made or altered since the last time tell everything
    only from now on."""
    if config.ddl.capture != "trigger":
        return ()
    made, watch.untriggered = ddl_trigger.ensure(db, config)
    if schemas is not None and watch.untriggered is None:
        with translate(config.where):
            row = db.execute(_MADE, [ddl_trigger.COMMANDS, ddl_trigger.DROPS]).fetchone()
            there, lsn = (row[0] if row else None) or "", wal_end(db)
        document = schemas.recall(_NOTED)
        if document is None or orjson.loads(document)["made"] != there:
            schemas.remember(_NOTED, orjson.dumps({"made": there, "since": lsn}))
    return made


def find_since(config: PostgresConfig, watch: PublicationWatch, schemas: Schemas) -> Callable[[], int | None]:
    """None where they are not used. Beyond every position while one is missing, and where it is not known."""
    document = schemas.recall(_NOTED)
    noted = int(orjson.loads(document)["since"]) if document else sys.maxsize

    def since() -> int | None:
        if config.ddl.capture != "trigger":
            return None
        return noted if watch.untriggered is None else sys.maxsize

    return since
