"""Golden files of the binlog: bytes that real servers sent, the SQL that made them, and the events they must become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import orjson

from tests.decoders.pgoutput.goldens import check_kinds, has_barrier
from tests.support.binlogstream import MapTables, decode
from tests.support.decoded import Row, rows
from tidemill.decoders._shared.mysql.gtid import Flavor

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Stream:
    """`began` is the position that the decoder is given."""

    server: str
    version: str
    began: str
    data: bytes = field(repr=False)

    @property
    def flavor(self) -> Flavor:
        return Flavor(self.server)


@dataclass(frozen=True)
class Golden:
    name: str
    setup: Sequence[str]
    sql: Sequence[str]
    known: Mapping[str, Sequence[tuple[str, str, str]]]
    keys: Mapping[str, Sequence[str]]
    ddls: Mapping[str, tuple[str, bool]]
    filled: Mapping[str, Sequence[str]]
    barrier: bool
    expected: Sequence[Row] = field(repr=False)
    streams: Sequence[Stream] = field(repr=False)

    def tables(self, flavor: Flavor) -> MapTables:
        return MapTables(self.known, self.keys, self.ddls, flavor, self.filled)


def load() -> list[tuple[Golden, Stream]]:
    """Every stream of every file."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        doc = orjson.loads(path.read_bytes())
        streams = [
            Stream(s["server"], s["version"], s["began"], bytes.fromhex("".join(s["bytes"]))) for s in doc["streams"]
        ]
        golden = Golden(
            doc["name"], doc["setup"], doc["sql"], doc["known"], doc["keys"], doc["ddls"], doc["filled"],
            doc["barrier"], doc["expected"], streams,
        )  # fmt: skip
        found += [(golden, stream) for stream in streams]
    return found


def label(pair: tuple[Golden, Stream]) -> str:
    return f"{pair[0].name}-{pair[1].server}"


def check(golden: Golden, stream: Stream) -> None:
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began=stream.began)
    found = comparable(rows(changes))
    wrong = next((pair for pair in zip_longest(found, golden.expected) if pair[0] != pair[1]), None)
    assert wrong is None, f"{golden.name} of {stream.server}: decoded, then expected: {wrong}"
    assert has_barrier(changes) == golden.barrier
    check_kinds(changes, golden.expected)


def comparable(events: Sequence[Row]) -> list[Row]:
    """Transactions counted instead of named by GTID, XID and time, which differ in every recording."""
    transactions: dict[str, int] = {}
    done = []
    for event in events:
        kept = {k: v for k, v in event.items() if k not in ("position", "tx_id", "commit_time", "ddl", "subtx")}
        if event.get("ddl") is not None:
            kept["ddl"] = event["ddl"]
        done.append({**kept, "tx": transactions.setdefault(event["position"], len(transactions))})
        assert event["commit_time"] > 1_600_000_000_000_000
    return done
