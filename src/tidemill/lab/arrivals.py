"""What has arrived at the demo's destination: reads the files as any consumer would, and replays them into tables."""

from __future__ import annotations

import re
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

Event = dict[str, Any]


class Arrivals:
    """Follows the directory of a files sink. Only whole files appear in it; their names sort by offset.

    `keys` names each table's key columns; `tables` is what a consumer who applies the events has now.
    """

    def __init__(self, directory: Path, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.latest: deque[Event] = deque(maxlen=50)
        self.tables: dict[str, dict[tuple[str, ...], Event]] = {}
        self.files = 0
        self.bytes = 0
        self._directory = directory
        self._keys = keys
        self._seen: set[Path] = set()
        self._delays: deque[float] = deque(maxlen=20_000)

    @property
    def total(self) -> int:
        return self.events.total()

    def delay(self) -> float | None:
        """Median seconds from commit to file, over the last events."""
        return statistics.median(self._delays) if self._delays else None

    def poll(self) -> None:
        """Takes in what is new."""
        for path in self._new_files():
            arrived = path.stat().st_mtime
            for event in self._read(path):
                table = str(event["table"]).rpartition(".")[2]
                self.events[table, str(event["op"])] += 1
                self.latest.append(event)
                self._delays.append(arrived - _seconds(event["timestamp"]))
                _apply(self.tables.setdefault(table, {}), event, self._keys[table])

    def _new_files(self) -> list[Path]:
        found = [path for path in self._directory.glob("[!_]*/*.jsonl") if path not in self._seen]
        self._seen.update(found)
        return sorted(found, key=lambda path: path.name)

    def _read(self, path: Path) -> Iterator[Event]:
        content = path.read_bytes()
        self.files += 1
        self.bytes += len(content)
        yield from map(orjson.loads, content.splitlines())


_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")  # the database prints it with a blank and +00


def differences(table: Mapping[tuple[str, ...], Event], rows: list[dict[str, Any]], key: tuple[str, ...]) -> int:
    """Rows that differ between the replayed events and the database (whose values come as text)."""
    wanted = {tuple(row[column] for column in key): row for row in rows}
    missing = wanted.keys() ^ table.keys()
    unequal = [k for k in wanted.keys() & table.keys() if any(not _same(t, table[k][c]) for c, t in wanted[k].items())]
    return len(missing) + len(unequal)


def _apply(rows: dict[tuple[str, ...], Event], event: Event, key: tuple[str, ...]) -> None:
    match event["op"]:
        case "delete":
            rows.pop(_key(event["before"], key), None)
        case "truncate":
            rows.clear()
        case _:
            name = _key(event["after"], key)
            kept = {column: rows[name][column] for column in event.get("unchanged") or () if name in rows}
            rows[name] = event["after"] | kept


def _key(image: Event, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(image[column]) for column in columns)


def _same(text: str | None, value: Any) -> bool:
    match value:
        case None:
            return text is None
        case dict() | list():
            return text is not None and bool(orjson.loads(text) == value)
        case str() if _TIMESTAMP.fullmatch(value) and text:
            return datetime.fromisoformat(value) == datetime.fromisoformat(text)
        case _:
            return str(value) == text


def _seconds(timestamp: Any) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else float(timestamp) / 1000
