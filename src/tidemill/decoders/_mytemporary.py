"""Temporary tables of sessions that log statements (binlog_format STATEMENT, MIXED): they hide tables of the same name.

A statement whose event has LOG_EVENT_THREAD_SPECIFIC_F has used one. So ALTER, TRUNCATE and the like, which are about
one table, were about a temporary one, also where its CREATE was never read. RENAME TABLE has no such flag: MariaDB
looks among the session's temporary tables first (10.11), MySQL never does. The servers write a DROP TABLE of both kinds
as two statements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemill.decoders import _mystatements as sql
from tidemill.decoders._mysession import Session

TableKey = tuple[str, str]
_NOBODY = sql.Name("", "")  # whose structure nobody knows


class Temporary:
    """`names` has the tables of each session, by its thread. `renamed`: RENAME TABLE means them, too."""

    def __init__(self, key: Callable[[str, str], TableKey], *, renamed: bool) -> None:
        self._key = key
        self._renamed = renamed
        self.names: dict[int, set[TableKey]] = {}

    def hides(self, key: TableKey, session: Session) -> bool:
        return session.uses_temporary and key in self.names.get(session.thread, ())

    def rest(self, statement: sql.Statement, database: str, session: Session) -> sql.Statement | None:
        """What the statement does to tables that stay; None if that is nothing."""

        def key(name: sql.Name) -> TableKey:
            return self._key(name.database or database, name.name)

        own = self.names.get(session.thread, set())
        match statement:
            case sql.CreateTable() if statement.temporary:
                self.names.setdefault(session.thread, set()).add(key(statement.table))
                return None
            case sql.CreateTable() if statement.source is not None and (
                session.uses_temporary or key(statement.source) in own
            ):
                return replace(statement, source=_NOBODY)
            case sql.DropTable() if statement.temporary:
                self._leave(session, {key(name) for name in statement.tables})
                return None
            case sql.AlterTable() if session.uses_temporary:
                if statement.rename_to is not None:
                    self._leave(session, {key(statement.table)})
                    self.names.setdefault(session.thread, set()).add(key(statement.rename_to))
                return None
            case sql.TruncateTable() if session.uses_temporary:
                return None
            case sql.RenameTable() if self._renamed and own:
                kept = []
                for old, new in statement.pairs:
                    if key(old) in own:
                        own.remove(key(old))
                        own.add(key(new))
                    else:
                        kept.append((old, new))
                return replace(statement, pairs=tuple(kept)) if kept else None
            case _:
                return statement

    def _leave(self, session: Session, gone: set[TableKey]) -> None:
        left = self.names.get(session.thread, set()) - gone
        if left:
            self.names[session.thread] = left
        else:
            self.names.pop(session.thread, None)
