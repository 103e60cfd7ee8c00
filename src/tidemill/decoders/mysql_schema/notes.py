"""How the schema history is written down in the schema registry, and read from it: one note per name and statement.

A name is a JSON array: [] the server's settings, [database] its charset, [database, table] the table's structure, and
["", "", thread] the temporary tables of a session.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from tidemill.contracts import Structure
from tidemill.decoders._shared.mysql.gtid import Flavor, MariadbGtids, MysqlGtids
from tidemill.decoders._shared.mysql.place import BinlogPlace, file_number
from tidemill.decoders.mysql_schema.catalog import CatalogTable
from tidemill.decoders.mysql_schema.history import State, TableHistory, Unknown
from tidemill.decoders.mysql_schema.temporary import TableKey
from tidemill.model.position import Position


def name_of(*parts: str) -> str:
    return orjson.dumps(parts).decode()


def of_state(state: State | None) -> bytes | None:
    if state is None:
        return None
    return state.to_json() if isinstance(state, CatalogTable) else orjson.dumps({"unknown": state.reason})


def of_charset(charset: str | None) -> bytes | None:
    return None if charset is None else orjson.dumps({"charset": charset})


def of_thread(thread: int) -> str:
    return name_of("", "", str(thread))


def of_temporary(names: Iterable[TableKey] | None, started: int | None) -> bytes | None:
    return None if names is None else orjson.dumps({"temporary": sorted(names), "started": started})


def everything(history: TableHistory) -> dict[str, bytes | None]:
    settings = orjson.dumps({"high_water_mark": history.high_water_mark})
    notes: dict[str, bytes | None] = {name_of(): settings}
    notes |= {name_of(name): of_charset(charset) for name, charset in history.charsets.items()}
    return notes | {name_of(*key): of_state(state) for key, state in history.tables.items()}


def recall(history: TableHistory, note: Structure) -> None:
    """Applies a note; they come in the order in which they were written."""
    parts: list[str] = orjson.loads(note.name)
    document = None if note.document is None else orjson.loads(note.document)
    match parts:
        case [] if document is not None:
            # Notes of earlier versions call it otherwise.
            name = "high_water_mark" if "high_water_mark" in document else "horizon"
            history.high_water_mark = document[name]
        case [database]:
            history.charsets.pop(database, None)
            if document is not None:
                history.charsets[database] = document["charset"]
        case [_, _, thread]:
            history.temporary.names.pop(int(thread), None)
            if document is not None:
                history.temporary.names[int(thread)] = {(database, name) for database, name in document["temporary"]}
                history.temporary.started = document.get("started")  # not in the notes of earlier versions
        case [database, table]:
            history.tables.pop((database, table), None)
            if document is not None:
                history.tables[database, table] = (
                    Unknown(document["unknown"])
                    if "unknown" in document
                    else CatalogTable.from_json(note.document or b"")
                )


def covers(place: BinlogPlace, text: Position, flavor: Flavor) -> bool:
    """Whether all that stands before `text` also stands before `place`. Positions of two kinds (GTIDs were turned on or
    off in between) cannot be compared: the other kind is the older one."""
    other = BinlogPlace.parse(text, flavor)
    if isinstance(place.gtids, MysqlGtids) and isinstance(other.gtids, MysqlGtids):
        return other.gtids.is_subset(place.gtids)
    if isinstance(place.gtids, MariadbGtids) and isinstance(other.gtids, MariadbGtids):
        return other.gtids.is_subset(place.gtids)
    if place.gtids is None and other.gtids is None:
        return (file_number(other.file)[1], other.offset) <= (file_number(place.file)[1], place.offset)
    return True
