"""Sets of global transaction ids, of both flavours, compared as sets and never as text.

MySQL    `3e11fa47-…:1-77:80,8a94f357-…:1-5:nightly:1-3`   per server (and tag, since 8.3) what was executed
MariaDB  `0-1-270,5-2-13`                                  per domain the last number, and the server that wrote it

The decoder adds each transaction's id as it ends and writes the set down; the source compares sets to tell whether a
server can go on from one. Both are mutable; `add` and `str` are cheap for ids that come in order. No I/O.
"""

from __future__ import annotations

import enum
import re
import struct
import uuid as uuids
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Self

from tidemill.errors import ConfigError


class Flavor(enum.StrEnum):
    MYSQL = "mysql"
    MARIADB = "mariadb"


class MysqlGtids:
    """`uuid[:tag]:number`. Numbers of one uuid and tag are kept as sorted intervals that neither touch nor overlap."""

    flavor = Flavor.MYSQL

    def __init__(self) -> None:
        # Flat and half open: [first, past, first, past, ...]. Keys are (uuid in lower case, tag or "").
        self._intervals: dict[tuple[str, str], list[int]] = {}
        self._latest = ("", "")  # the key that grew last, and will most likely grow next
        self._grown: tuple[tuple[str, str], str, str] | None = None  # key, and the text around its last number

    @classmethod
    def parse(cls, text: str) -> Self:
        """White space anywhere and letters of either case, as the server takes them. `ConfigError` for the rest."""
        found = cls()
        for part in "".join(text.split()).lower().split(","):
            if part:
                found._parse_one(part, text)
        return found

    def _parse_one(self, part: str, text: str) -> None:
        name, *rest = part.split(":")
        if not _UUID.fullmatch(name) or not rest:
            raise _unreadable(text, Flavor.MYSQL)
        tag, numbers = "", 0
        for piece in rest:
            if interval := _INTERVAL.fullmatch(piece):
                first, last = int(interval[1]), int(interval[2] or interval[1])
                if not 0 < first <= last < _END:
                    raise _unreadable(text, Flavor.MYSQL)
                self.add_interval(name, tag, first, last + 1)
                numbers += 1
            elif _TAG.fullmatch(piece) and (numbers or not tag):
                tag, numbers = piece, 0
            else:
                raise _unreadable(text, Flavor.MYSQL)
        if not numbers:
            raise _unreadable(text, Flavor.MYSQL)

    def add(self, uuid: str, number: int, tag: str = "") -> None:
        """`uuid` in lower case with dashes, as `str` of a UUID has it. Adding twice changes nothing."""
        held = self._intervals.get((uuid, tag))
        if held and held[-1] == number:
            held[-1] = number + 1
            self._latest = (uuid, tag)
            if self._grown is not None and self._grown[0] != self._latest:
                self._grown = None
        else:
            self.add_interval(uuid, tag, number, number + 1)

    def add_interval(self, uuid: str, tag: str, first: int, past: int) -> None:
        """All numbers from `first` up to, not including, `past`."""
        self._grown = None
        key = (uuid, tag)
        self._intervals[key] = _union(self._intervals.get(key, []), [first, past])

    def contains(self, uuid: str, number: int, tag: str = "") -> bool:
        return bool(bisect_right(self._intervals.get((uuid, tag), []), number) % 2)

    def union(self, other: MysqlGtids) -> MysqlGtids:
        made = self.copy()
        for key, intervals in other._intervals.items():
            made._intervals[key] = _union(made._intervals.get(key, []), intervals)
        return made

    def minus(self, other: MysqlGtids) -> MysqlGtids:
        made = MysqlGtids()
        for key, intervals in self._intervals.items():
            if left := _minus(intervals, other._intervals.get(key, [])):
                made._intervals[key] = left
        return made

    def is_subset(self, other: MysqlGtids) -> bool:
        """Whether `other` has everything that is in here."""
        return not self.minus(other)

    def copy(self) -> MysqlGtids:
        made = MysqlGtids()
        made._intervals = {key: list(intervals) for key, intervals in self._intervals.items()}
        return made

    def encode(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID and PREVIOUS_GTIDS have it. Servers before 8.3 know only sets without tags, and the
        layout with tags is used only when there is one (`encode_nsids_format` of the server)."""
        tagged = any(tag for _, tag in self._intervals)
        count = len(self._intervals)
        parts = [struct.pack("<Q", 1 << 56 | count << 8 | 1 if tagged else count)]
        for (uuid, tag), intervals in sorted(self._intervals.items()):
            parts.append(uuids.UUID(uuid).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack(f"<Q{len(intervals)}Q", len(intervals) // 2, *intervals))
        return b"".join(parts)

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        """(uuid, tag, first, past) of every interval, in order."""
        for (uuid, tag), intervals in sorted(self._intervals.items()):
            for first, past in zip(intervals[::2], intervals[1::2], strict=True):
                yield uuid, tag, first, past

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MysqlGtids) and self._intervals == other._intervals

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        """The server's own form: uuids and tags in order, the untagged intervals of a uuid first."""
        if self._grown is not None:
            key, before, after = self._grown
            return f"{before}{self._intervals[key][-1] - 1}{after}"
        return self._render()

    def _render(self) -> str:
        """All of it, once; as long as one interval at its key's end grows, only its last number is written anew."""
        text, end_of = "", {}
        last_uuid = ""
        for key in sorted(self._intervals):
            uuid, tag = key
            text += ("," if text else "") + uuid if uuid != last_uuid else ""
            text += f":{tag}" if tag else ""
            intervals = self._intervals[key]
            for first, past in zip(intervals[::2], intervals[1::2], strict=True):
                text += f":{first}" if past == first + 1 else f":{first}-{past - 1}"
            end_of[key] = len(text)
            last_uuid = uuid
        held = self._intervals.get(self._latest, [0, 0])
        if held[-1] - held[-2] > 1:
            end = end_of[self._latest]
            self._grown = (self._latest, text[: end - len(str(held[-1] - 1))], text[end:])
        return text


class MariadbGtids:
    """`domain-server-number`, one per domain: everything of the domain up to the number was seen.

    MariaDB's own notion of a position (`gtid_slave_pos`): it keeps no gaps, and the server id only says who wrote last.
    """

    flavor = Flavor.MARIADB

    def __init__(self, last: dict[int, tuple[int, int]] | None = None) -> None:
        self._last = dict(last or {})  # domain -> (server, number)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Several servers of one domain, as `gtid_binlog_state` lists them: the highest number stands for it."""
        found = cls()
        for part in "".join(text.split()).split(","):
            if not part:
                continue
            numbers = _TRIPLE.fullmatch(part)
            if not numbers:
                raise _unreadable(text, Flavor.MARIADB)
            domain, server, number = int(numbers[1]), int(numbers[2]), int(numbers[3])
            if domain >= 1 << 32 or server >= 1 << 32 or number >= 1 << 64:
                raise _unreadable(text, Flavor.MARIADB)
            if number >= found._last.get(domain, (0, 0))[1]:
                found._last[domain] = (server, number)
        return found

    def add(self, domain: int, server: int, number: int) -> None:
        """The last transaction of the domain, as the binlog has it. Without gtid_strict_mode numbers may fall: the
        order of the binlog counts, as it does for MariaDB's own replicas."""
        self._last[domain] = (server, number)

    def contains(self, domain: int, number: int) -> bool:
        return 0 < number <= self._last.get(domain, (0, 0))[1]

    def number(self, domain: int) -> int:
        """The last number of a domain, 0 if nothing of it was seen."""
        return self._last.get(domain, (0, 0))[1]

    def union(self, other: MariadbGtids) -> MariadbGtids:
        made = MariadbGtids(self._last)
        for domain, (server, number) in other._last.items():
            if number > made.number(domain):
                made._last[domain] = (server, number)
        return made

    def minus(self, other: MariadbGtids) -> dict[int, tuple[int, int]]:
        """Per domain the first and the last number that is in here and not in `other`."""
        return {
            domain: (other.number(domain) + 1, number)
            for domain, (_, number) in sorted(self._last.items())
            if number > other.number(domain)
        }

    def is_subset(self, other: MariadbGtids) -> bool:
        return not self.minus(other)

    def copy(self) -> MariadbGtids:
        return MariadbGtids(self._last)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(domain, server, number), in order of the domains."""
        return ((domain, *last) for domain, last in sorted(self._last.items()))

    def __bool__(self) -> bool:
        return bool(self._last)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtids) and self._last == other._last

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, server, number in self)


GtidSet = MysqlGtids | MariadbGtids


def parse_gtids(text: str, flavor: Flavor) -> GtidSet:
    return MysqlGtids.parse(text) if flavor is Flavor.MYSQL else MariadbGtids.parse(text)


_END = 1 << 63  # numbers are signed 64 bit at the server, the last one is reserved
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_TRIPLE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")


def _unreadable(text: str, flavor: Flavor) -> ConfigError:
    shape = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77" if flavor is Flavor.MYSQL else "0-1-270"
    return ConfigError(f'"{text[:80]}" is not a set of global transaction ids', fix=f"Write it like {shape}.")


def _union(left: Iterable[int], right: Iterable[int]) -> list[int]:
    pairs = sorted([*_pairs(left), *_pairs(right)])
    merged: list[int] = []
    for first, past in pairs:
        if merged and first <= merged[-1]:
            merged[-1] = max(merged[-1], past)
        else:
            merged += (first, past)
    return merged


def _minus(left: list[int], right: list[int]) -> list[int]:
    rest: list[int] = []
    cuts = list(_pairs(right))
    at = 0
    for first, past in _pairs(left):
        while at < len(cuts) and cuts[at][1] <= first:
            at += 1
        look = at
        while look < len(cuts) and cuts[look][0] < past:
            if cuts[look][0] > first:
                rest += (first, cuts[look][0])
            first = max(first, cuts[look][1])
            look += 1
        if first < past:
            rest += (first, past)
    return rest


def _pairs(flat: Iterable[int]) -> Iterator[tuple[int, int]]:
    numbers = iter(flat)
    return zip(numbers, numbers, strict=True)
