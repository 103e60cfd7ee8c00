"""A consumer who applies the delivered events to empty tables, and is hard to please.

It takes events in the order of their arrival. An event that was seen before is counted and put aside; a new one must
stand behind every earlier event of its key (and a TRUNCATE behind every earlier event of its table), must find the row
it changes, and must carry an identity that agrees with its place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tests.crash.harness import Row, SourceHarness, Tally

Key = bytes
_COMPLAINTS = 20


class Replay:
    """`tables` holds the rows by key, `bags` those of tables without one, each row as often as it is there.
    `counts_ddl`: `events` has those of schema changes too."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]], *, counts_ddl: bool = True) -> None:
        self._counts_ddl = counts_ddl
        self.tally: Tally = Counter()
        self.duplicates = 0
        self.complaints: list[str] = []
        self.tables: dict[str, dict[Key, Row]] = {table: {} for table, key in keys.items() if key}
        self.bags: dict[str, Counter[Key]] = {table: Counter() for table, key in keys.items() if not key}
        self._keys = keys
        self._ids: dict[str, int] = {}
        self._last: dict[tuple[str, Key], int] = {}
        self._newest: dict[str, int] = defaultdict(lambda: -1)
        self._truncated: dict[str, int] = defaultdict(lambda: -1)
        self._offsets: set[int] = set()
        self._added: set[tuple[str, str]] = set()  # columns, by table

    @property
    def events(self) -> int:
        """Different ones."""
        told = 0 if self._counts_ddl else sum(count for (_, op), count in self.tally.items() if op == "ddl")
        return len(self._ids) - told

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            identity, offset = event["event_id"], event["offset"]
            known = self._ids.setdefault(identity, offset)
            if known != offset:
                self._complain(f"{identity} has offset {known} and, delivered again, {offset} (invariant 5)")
            if offset in self._offsets:
                self.duplicates += 1
                continue
            self._offsets.add(offset)
            if identity != f"{event['source_id']}:{event['position']}:{event['ordinal']}":
                self._complain(f"{identity} does not follow from its position and ordinal (invariant 4)")
            self.tally[event["table"], event["op"]] += 1
            if event["table"] in self._keys:
                self._apply(event)

    def compare(self, harness: SourceHarness) -> list[str]:
        """Everything that is wrong: with the events themselves, their number, and the tables that they make."""
        found = [*self.complaints]
        expected = harness.tally()
        for table, op in sorted(expected.keys() | self.tally.keys()):
            if (op != "ddl" or harness.COUNTS_DDL) and expected[table, op] != self.tally[table, op]:
                found.append(f"{table}: {self.tally[table, op]} {op} events, not {expected[table, op]}")
        if self._offsets and self._offsets != set(range(len(self._offsets))):
            found.append(f"{len(self._offsets)} offsets between 0 and {max(self._offsets)}: there are holes")
        for table, key in self._keys.items():
            rows = harness.rows(table)
            if key:
                found += _unequal(table, self.tables[table], {_image(row, key): row for row in rows})
            else:
                wanted = Counter(_whole(row) for row in rows)
                for row in (wanted - self.bags[table]) + (self.bags[table] - wanted):
                    kept, there = self.bags[table][row], wanted[row]
                    found.append(f"{table}: {kept} times, in the database {there} times: {row[:200]!r}")
        return found

    def _apply(self, event: dict[str, Any]) -> None:
        table, op, offset = event["table"], event["op"], event["offset"]
        if op == "ddl":
            self._in_table_order(event)
            self._alter(table, event["ddl"]["changes"])
            return
        if op == "truncate":
            if offset < self._newest[table]:
                self._complain(f"{table}: TRUNCATE at {offset} came after {self._newest[table]}")
            self._truncated[table] = offset
            (self.tables.get(table) or self.bags.get(table) or {}).clear()
            return
        if offset < self._truncated[table]:
            self._complain(f"{table}: {op} at {offset} came after the TRUNCATE at {self._truncated[table]}")
        self._newest[table] = max(self._newest[table], offset)
        if self._keys[table]:
            self._apply_keyed(event, self.tables[table], self._keys[table])
        else:
            self._apply_whole(event, self.bags[table])

    def _in_table_order(self, event: dict[str, Any]) -> None:
        table, offset = event["table"], event["offset"]
        if offset < self._newest[table]:
            self._complain(f"{table}: the statement at {offset} came after {self._newest[table]}")
        self._newest[table] = offset

    def _alter(self, table: str, changes: list[dict[str, Any]]) -> None:
        """What a statement does to rows that are there: columns go or change their names. New ones are NULL, and told
        once."""
        for change in changes:
            match change["change"]:
                case "add":
                    if (table, change["column"]) in self._added:
                        self._complain(f"{table}: the new column {change['column']} was told twice")
                    self._added.add((table, change["column"]))
                    continue
                case "drop":
                    names = {change["column"]: ""}
                    self._added.discard((table, change["column"]))
                case "rename":
                    names = {change["from"]: change["column"]}
                    self._added.discard((table, change["from"]))
                    self._added.add((table, change["column"]))
                case _:
                    continue
            if table in self.tables:
                for row in self.tables[table].values():
                    _rename(row, names)
            else:
                bag: Counter[Key] = Counter()
                for text, count in self.bags[table].items():
                    bag[_whole(_rename(orjson.loads(text), names))] += count
                self.bags[table] = bag

    def _apply_keyed(self, event: dict[str, Any], rows: dict[Key, Row], key: tuple[str, ...]) -> None:
        table, op, before, after = event["table"], event["op"], event["before"], event["after"]
        # Without one of the images the key is that of the other.
        new = _image(after or before, key)
        old = _image(before or after, key)
        for name in {old, new}:
            self._in_order(table, name, event)
        match op:
            case "insert":
                if new in rows:
                    self._complain(f"{table} {new!r}: inserted twice, again at {event['offset']}")
                rows[new] = after
            case "update":
                kept = rows.pop(old, None)
                if kept is None:
                    self._complain(f"{table} {old!r}: update at {event['offset']} of a row that is not there")
                unchanged = event.get("unchanged") or ()
                rows[new] = after | {column: (kept or {}).get(column) for column in unchanged}
            case "delete":
                if rows.pop(old, None) is None:
                    self._complain(f"{table} {old!r}: delete at {event['offset']} of a row that is not there")
            case _:
                self._complain(f"{table}: unexpected {op}")

    def _apply_whole(self, event: dict[str, Any], bag: Counter[Key]) -> None:
        if event.get("unchanged"):
            self._complain(f"{event['event_id']}: columns left out although the old row was sent")
        if event["before"]:
            row = _whole(event["before"])
            if bag[row] < 1:
                self._complain(f"{event['table']}: {event['op']} at {event['offset']} of a row that is not there")
            bag[row] -= 1
        if event["after"]:
            bag[_whole(event["after"])] += 1

    def _in_order(self, table: str, key: Key, event: dict[str, Any]) -> None:
        last = self._last.get((table, key), -1)
        if event["offset"] <= last:
            self._complain(f"{table} {key!r}: {event['offset']} came after {last}")
        self._last[table, key] = event["offset"]

    def _complain(self, text: str) -> None:
        if len(self.complaints) < _COMPLAINTS:
            self.complaints.append(text)


def _image(row: Row, key: tuple[str, ...]) -> Key:
    return orjson.dumps([row[column] for column in key])


def _whole(row: Row) -> Key:
    """A column added later is NULL in a row that never had it."""
    return orjson.dumps({c: v for c, v in row.items() if v is not None}, option=orjson.OPT_SORT_KEYS)


def _rename(row: Row, names: Mapping[str, str]) -> Row:
    for old, new in names.items():
        value = row.pop(old, None)
        if new:
            row[new] = value
    return row


def _unequal(table: str, kept: Mapping[Key, Row], wanted: Mapping[Key, Row]) -> list[str]:
    found = [f"{table} {key!r}: missing" for key in wanted.keys() - kept.keys()]
    found += [f"{table} {key!r}: not in the database" for key in kept.keys() - wanted.keys()]
    for key in wanted.keys() & kept.keys():
        for column in wanted[key].keys() | kept[key].keys():
            here, there = kept[key].get(column), wanted[key].get(column)
            if here != there:
                found.append(f"{table} {key!r}: {column} is {here!r:.100}, in the database {there!r:.100}")
    return found
