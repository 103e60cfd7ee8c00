"""What a QUERY event tells of the session that ran its statement, as far as it changes what the statement means."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SqlMode(enum.IntFlag):
    """Bits of sql_mode that the grammar of DDL depends on; both servers number them alike. Others are carried along."""

    REAL_AS_FLOAT = 1
    ANSI_QUOTES = 4
    ORACLE = 1 << 9  # MariaDB
    NO_BACKSLASH_ESCAPES = 1 << 20


PLAIN = SqlMode(0)


@dataclass(frozen=True, slots=True)
class StatementSession:
    """`server_charset` is that of its collation_server, empty if it is none that is known. `uses_temporary`: the
    statement may have used one of the session's temporary tables (LOG_EVENT_THREAD_SPECIFIC_F); without it, it did not.
    It says no more than that (`temporary`)."""

    mode: SqlMode = PLAIN
    server_charset: str = ""
    thread: int = 0
    uses_temporary: bool = False


NO_SESSION = StatementSession()
