"""How far a binlog stream has come, and the text that says so: a position of MySQL or MariaDB.

    3e11fa47-…:1-77                   a GTID set: any server that has it can go on
    0-1-270                           the same in MariaDB's form
    empty                             the GTID set with nothing in it: from the very beginning
    binlog.000003:1547@3e11fa47-…     file and byte, and whose file it is (server_uuid; MariaDB: server_id)

The decoder moves a `Place` along; the source begins with one and judges whether a server can go on from it. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemill.decoders.gtid import Flavor, GtidSet, MariadbGtids, MysqlGtids, parse_gtids
from tidemill.errors import ConfigError
from tidemill.model.position import Position

_EMPTY = "empty"
_FILE = re.compile(r"([^:@/]+\.[0-9]{6,}):([0-9]+)(?:@([0-9a-fA-F-]*))?")


@dataclass(slots=True)
class Place:
    """`gtids` is None where positions are file and byte. `file` and `offset` are kept in both kinds: for the lag.

    At the end of a transaction the decoder adds its id (`gtids.add`) and sets `offset` to the end of its last event;
    ROTATE sets `file` and `offset`. Only then is `text()` a position to resume at.
    """

    flavor: Flavor
    gtids: GtidSet | None = None
    file: str = ""
    offset: int = 4  # the first event stands after the magic number
    server: str = ""

    @classmethod
    def parse(cls, text: str, flavor: Flavor) -> Place:
        """`ConfigError` if it is neither kind."""
        text = text.strip()
        if found := _FILE.fullmatch(text):
            return cls(flavor, None, found[1], max(4, int(found[2])), found[3] or "")
        if text == _EMPTY:
            return cls(flavor, MysqlGtids() if flavor is Flavor.MYSQL else MariadbGtids())
        try:
            if not text:
                raise ConfigError("a position is not empty text", fix=f'Write "{_EMPTY}" for the very beginning.')
            return cls(flavor, parse_gtids(text, flavor))
        except ConfigError as error:
            raise ConfigError(
                f'"{text[:80]}" is not a position of {"MySQL" if flavor is Flavor.MYSQL else "MariaDB"}',
                fix=f"{error.fix} Or a file and byte of the binlog, like binlog.000003:1547.",
            ) from error

    def copy(self) -> Place:
        return Place(self.flavor, self.gtids.copy() if self.gtids is not None else None, self.file, self.offset,
                     self.server)  # fmt: skip

    def text(self) -> Position:
        if self.gtids is not None:
            return Position(str(self.gtids) or _EMPTY)
        return Position(f"{self.file}:{self.offset}@{self.server}")
