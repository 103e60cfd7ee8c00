"""How far a binlog stream has come, and the text that says so: a position of MySQL or MariaDB.

    3e11fa47-…:1-77                   a GTID set: any server that has it can go on
    0-1-270                           the same in MariaDB's form
    empty                             the GTID set with nothing in it: from the very beginning
    binlog.000003:1547/1700000000@3e11fa47-…
                                      file and byte, when the file was made (seconds since 1970) and whose it is
                                      (server_uuid; MariaDB: server_id)
    3e11fa47-…:1-77#binlog.000003:1547/1700000000@3e11fa47-…
                                      a GTID set, and the place where its last transaction was read

The same numbers are given out twice by a server whose binlog was reset or that was put back to an earlier state; a file
made at another second tells. Each part after the first may be missing: earlier versions, and people, write less.

The decoder moves a `BinlogPlace` along; the source begins with one and judges whether a server can go on from it.
No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tidemill.decoders._shared.mysql.gtid import Flavor, GtidSet, MariadbGtids, MysqlGtids, parse_gtids
from tidemill.errors import ConfigError
from tidemill.model.position import Ordering, Position

_EMPTY = "empty"
_FILE = re.compile(r"([^:@/#]+\.[0-9]{6,}):([0-9]+)(?:/([0-9]+))?(?:@([0-9a-fA-F-]*))?")


@dataclass(frozen=True, slots=True)
class BinlogWitness:
    """Where a server had what was read last: its file, made at `created`, up to a byte."""

    file: str
    offset: int
    created: int
    server: str

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}" + (f"/{self.created}" if self.created else "") + f"@{self.server}"


@dataclass(slots=True)
class BinlogPlace:
    """`gtids` is None where positions are file and byte. `file` and `offset` are kept in both kinds: for the lag.
    `created` is when the file was made, 0 if that is not known; `seen` is where the last transaction of `gtids` ended.

    At the end of a transaction the decoder adds its id (`gtids.add`) and sets `offset` to the end of its last event;
    ROTATE sets `file` and `offset`. Only then is `text()` a position to resume at.
    """

    flavor: Flavor
    gtids: GtidSet | None = None
    file: str = ""
    offset: int = 4  # the first event stands after the magic number
    server: str = ""
    created: int = 0
    seen: BinlogWitness | None = None

    @classmethod
    def parse(cls, text: str, flavor: Flavor) -> BinlogPlace:
        """`ConfigError` if it is neither kind."""
        text = text.strip()
        if found := _FILE.fullmatch(text):
            return cls(flavor, None, found[1], max(4, int(found[2])), found[4] or "", int(found[3] or 0))
        gtids, _, last = text.partition("#")
        seen = _witness(last)
        if gtids == _EMPTY:
            return cls(flavor, MysqlGtids() if flavor is Flavor.MYSQL else MariadbGtids(), seen=seen)
        try:
            if not gtids:
                raise ConfigError("a position is not empty text", fix=f'Write "{_EMPTY}" for the very beginning.')
            return cls(flavor, parse_gtids(gtids, flavor), seen=seen)
        except ConfigError as error:
            raise ConfigError(
                f'"{text[:80]}" is not a position of {"MySQL" if flavor is Flavor.MYSQL else "MariaDB"}',
                fix=f"{error.fix} Or a file and byte of the binlog, like binlog.000003:1547.",
            ) from error

    def copy(self) -> BinlogPlace:
        return replace(self, gtids=self.gtids.copy() if self.gtids is not None else None)

    @property
    def witness(self) -> BinlogWitness | None:
        """What the server must still have, for this position to mean what it meant."""
        if self.gtids is None:
            return BinlogWitness(self.file, self.offset, self.created, self.server) if self.server else None
        return self.seen

    def end_transaction(self, offset: int) -> None:
        """The last transaction ended at this byte of `file`."""
        self.offset = offset
        if self.gtids is not None:
            known = self.created and self.server
            self.seen = BinlogWitness(self.file, offset, self.created, self.server) if known else None

    def is_at(self, other: BinlogPlace) -> bool:
        """Whether the same transactions stand before both."""
        if self.gtids is not None:
            return self.gtids == other.gtids
        return other.gtids is None and (self.file, self.offset) == (other.file, other.offset)

    def compare(self, other: BinlogPlace) -> Ordering | None:
        """How this place stands to another; None if neither follows from the other."""
        match self.gtids, other.gtids:
            case None, None:
                return self._compare_bytes(other)
            case MysqlGtids() as here, MysqlGtids() as there:
                has_less, has_more = here.is_subset(there), there.is_subset(here)
            case MariadbGtids() as mine, MariadbGtids() as theirs:
                has_less, has_more = mine.is_subset(theirs), theirs.is_subset(mine)
            case _:
                return None
        if has_less and has_more:  # MariaDB: the same number of two servers is not the same transaction
            return Ordering.SAME if self.gtids == other.gtids else None
        return Ordering.BEFORE if has_less else Ordering.AFTER if has_more else None

    def _compare_bytes(self, other: BinlogPlace) -> Ordering | None:
        """Only of one server, whose files have not begun anew in between."""
        (base, number), (other_base, other_number) = file_number(self.file), file_number(other.file)
        if base != other_base or (self.server and other.server and self.server != other.server):
            return None
        if number == other_number and self.created and other.created and self.created != other.created:
            return None
        here, there = (number, self.offset), (other_number, other.offset)
        return Ordering.SAME if here == there else Ordering.BEFORE if here < there else Ordering.AFTER

    def text(self) -> Position:
        if self.gtids is None:
            return Position(str(BinlogWitness(self.file, self.offset, self.created, self.server)))
        return Position((str(self.gtids) or _EMPTY) + (f"#{self.seen}" if self.seen else ""))


def file_number(file: str) -> tuple[str, int]:
    """The name and the number of a binlog file. Compared as numbers: after .999999 comes .1000000."""
    base, _, number = file.rpartition(".")
    return base, int(number or 0)


def _witness(text: str) -> BinlogWitness | None:
    found = _FILE.fullmatch(text)
    if not text:
        return None
    if not found:
        raise ConfigError(f'"{text[:80]}" is not a place in a binlog', fix="Leave out what follows #.")
    return BinlogWitness(found[1], int(found[2]), int(found[3] or 0), found[4] or "")
