"""Golden files: bytes that real servers sent, the SQL that made them, and the events they must become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import orjson

from tests.support.decoded import Row, rows
from tests.support.pgstream import decode, tables_of
from tidemill.model.barrier import Barrier
from tidemill.model.change import Change, Committed, Spilled

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Stream:
    server: str
    protocol: int
    streaming: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Golden:
    name: str
    setup: Sequence[str]
    sql: Sequence[str]
    keys: Mapping[str, Sequence[str]]
    barrier: bool
    expected: Sequence[Row] = field(repr=False)
    streams: Sequence[Stream] = field(repr=False)


def load() -> list[tuple[Golden, Stream]]:
    """Every stream of every file."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        doc = orjson.loads(path.read_bytes())
        streams = [
            Stream(s["server"], s["protocol"], s["streaming"], bytes.fromhex("".join(s["bytes"])))
            for s in doc["streams"]
        ]
        golden = Golden(
            doc["name"], doc["setup"], doc["sql"], doc["keys"], doc["barrier"], doc["expected"], streams
        )  # fmt: skip
        found += [(golden, stream) for stream in streams]
    return found


def label(pair: tuple[Golden, Stream]) -> str:
    golden, stream = pair
    streamed = "" if stream.streaming == "off" else f"-{stream.streaming}"
    return f"{golden.name}-pg{stream.server.split('.')[0]}-p{stream.protocol}{streamed}"


def numbered(events: Iterable[Row]) -> list[Row]:
    """With each event's ordinal in its transaction."""
    seen: dict[int, int] = {}
    done = []
    for event in events:
        ordinal = seen[event["tx"]] = seen.get(event["tx"], -1) + 1
        done.append({**event, "ordinal": ordinal})
    return done


def check(golden: Golden, stream: Stream) -> None:
    changes = decode(stream.data, tables_of(golden.keys))
    found = comparable(rows(changes))
    wrong = next((pair for pair in zip_longest(found, golden.expected) if pair[0] != pair[1]), None)
    assert wrong is None, f"{golden.name}: decoded, then expected: {wrong}"
    assert has_barrier(changes) == golden.barrier
    check_kinds(changes, golden.expected)


def comparable(events: Sequence[Row]) -> list[Row]:
    """Transactions counted instead of named by LSN, xid and time, which differ in every recording."""
    transactions: dict[tuple[str, int | None, int | None], int] = {}
    done = []
    for event in events:
        name = (event["position"], event["tx_id"], event["commit_time"])
        kept = {k: v for k, v in event.items() if k not in ("position", "tx_id", "commit_time")}
        done.append({**kept, "tx": transactions.setdefault(name, len(transactions))})
    numbers = [_lsn(position) for position, *_ in transactions]
    assert numbers == sorted(set(numbers)), "positions must rise from transaction to transaction"
    return done


def check_kinds(changes: Iterable[Change], expected: Iterable[Row]) -> None:
    """A barrier names why it is one: TRUNCATE where one is among the events, and never that there is just something."""
    kinds = Barrier.NONE
    for change in changes:
        if isinstance(change, Committed | Spilled):
            kinds |= change.barrier
    assert (Barrier.TRUNCATE in kinds) == any(event["op"] == "truncate" for event in expected)
    assert Barrier.UNNAMED not in kinds


def has_barrier(changes: Iterable[Change]) -> bool:
    return any(change.barrier for change in changes if isinstance(change, Committed | Spilled))


def _lsn(position: str) -> int:
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)
