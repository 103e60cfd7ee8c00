"""Statements as a server wrote them into its binlog."""

from __future__ import annotations

import re
from typing import Any

from tidemill.control.servers.mysqlfamily import Server


class Statements:
    """Reads what was logged since the last look, as (database, text)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._file, self._at = self._end()

    def new(self) -> list[tuple[str, str]]:
        found = []
        for row in self._server.query(f"SHOW BINLOG EVENTS IN '{self._file}' FROM {self._at}"):
            _file, _at, kind, _server, end, info, *_ = row
            self._at = end
            if kind == "Query":
                database, text = re.fullmatch(r"(?:use `((?:[^`]|``)*)`; )?(.*)", info, re.DOTALL).groups()  # type: ignore[union-attr]
                found.append(((database or "").replace("``", "`"), text))
        return found

    def _end(self) -> tuple[str, int]:
        command = "SHOW BINARY LOG STATUS" if self._server.name == "MySQL" else "SHOW MASTER STATUS"
        row: tuple[Any, ...] = self._server.query(command)[0]
        return row[0], int(row[1])
