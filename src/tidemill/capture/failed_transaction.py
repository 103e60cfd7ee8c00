"""The one transaction at which capture stopped for good, kept so that `tidemill recover --skip-transaction` leaves out
that one, once, and never another.

Written when capture gives up, in the memory of the source's registry; the log then ends right before the transaction
(`loop._note_progress`). A stream that begins anew forgets it: it meets the transaction again, or gets past it.
"""

from __future__ import annotations

import orjson

from tidemill.contracts import Schemas
from tidemill.errors import SKIP, TidemillError
from tidemill.model.position import Position

NAME = "capture.stopped"


def note(schemas: Schemas, error: TidemillError, tail: Position) -> None:
    """Durable when it returns. Only for errors that name a transaction which can be left out."""
    if SKIP in error.fix and "transaction " in error.where:
        schemas.remember(NAME, orjson.dumps({"after": tail, "where": error.where}))


def recall(schemas: Schemas, tail: Position) -> str | None:
    """Where capture stopped, if that is the transaction after `tail`."""
    document = schemas.recall(NAME)
    if document is None:
        return None
    kept = orjson.loads(document)
    return str(kept["where"]) if kept["after"] == tail else None


def forget(schemas: Schemas) -> None:
    if schemas.recall(NAME) is not None:
        schemas.remember(NAME, None)
