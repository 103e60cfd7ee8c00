"""Temporary tables of sessions that log statements (binlog_format STATEMENT, MIXED): they hide tables of the same name.

A statement is about one only if the same session made it: its CREATE TEMPORARY TABLE is in the binlog, and no DROP. The
flag LOG_EVENT_THREAD_SPECIFIC_F alone proves nothing. Seen on MySQL 9 and MariaDB 10.11:

- Every statement about a temporary table has the flag. In a procedure, so has every statement after a first one that
  has it, and that may be a DROP TABLE IF EXISTS of a name that nobody has.
- What a session does to temporary tables in ROW format is not logged, nor in MIXED by MySQL. So a flagged statement of
  such a session is about a table that stays.
- Where the CREATE is logged, the end is too: DROP TABLE (both kinds are written as two statements), the end of the
  session, a reset of the connection, and on MariaDB a DROP after a change to ROW; MySQL refuses that change. Only a
  server that dies writes nothing; `server_started` makes up for it.

A table that was made temporary before the stream began is not known here, and what is said of it counts for the table
that stays. The other way round would be worse: sessions of ROW format have no such tables, and their ALTER and TRUNCATE
would be lost. A wrong ALTER is met by the check against the next TABLE_MAP.

RENAME TABLE never has the flag: MariaDB looks among the session's temporary tables first (10.11), MySQL never does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemill.decoders._shared.mysql.session import StatementSession
from tidemill.decoders.mysql_schema import statements as sql

TableKey = tuple[str, str]
_NOBODY = sql.WrittenName("", "")  # whose structure nobody knows


class Temporary:
    """`names` has the tables of each session, by its thread; a server that starts numbers threads anew. `renamed`:
    RENAME TABLE means them, too."""

    def __init__(self, key: Callable[[str, str], TableKey], *, renamed: bool) -> None:
        self._key = key
        self._renamed = renamed
        self.names: dict[int, set[TableKey]] = {}
        self.started: int | None = 0  # when the server started whose sessions these are; 0 before the stream began

    def server_started(self, seconds: int) -> list[int]:
        """The threads whose temporary tables ended with the server. None where it is the start that was known."""
        ended = [] if self.started in (None, seconds) else list(self.names)
        for thread in ended:
            del self.names[thread]
        self.started = seconds
        return ended

    def hides(self, key: TableKey, session: StatementSession) -> bool:
        """Whether a statement means a temporary table by that name."""
        return session.uses_temporary and key in self.names.get(session.thread, ())

    def rest(self, statement: sql.Statement, database: str, session: StatementSession) -> sql.Statement | None:
        """What the statement does to tables that stay; None if that is nothing."""

        def key(name: sql.WrittenName) -> TableKey:
            return self._key(name.database or database, name.name)

        own = self.names.get(session.thread, set())
        match statement:
            case sql.CreateTable() if statement.temporary:
                self.names.setdefault(session.thread, set()).add(key(statement.table))
                return None
            case sql.CreateTable() if statement.source is not None and self.hides(key(statement.source), session):
                return replace(statement, source=_NOBODY)
            case sql.DropTable() if statement.temporary:
                self._leave(session, {key(name) for name in statement.tables})
                return None
            case sql.AlterTable() if self.hides(key(statement.table), session):
                if statement.rename_to is not None:
                    self._leave(session, {key(statement.table)})
                    self.names.setdefault(session.thread, set()).add(key(statement.rename_to))
                return None
            case sql.TruncateTable() if self.hides(key(statement.table), session):
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

    def _leave(self, session: StatementSession, gone: set[TableKey]) -> None:
        left = self.names.get(session.thread, set()) - gone
        if left:
            self.names[session.thread] = left
        else:
            self.names.pop(session.thread, None)
