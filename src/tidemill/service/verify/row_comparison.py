"""Compares one table's rows, and settles what differed at the first look.

Keys that differ are looked at again, until the sink has passed the place at which the source was looked at before: what
differs then, and once more, although the source's row has not changed in between, is a difference. A row that changes
from look to look is reported as moving, and judged by no one. Where the sink does not come so far in time, which the
verdict says, a difference may be a delay.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidemill.capture.status import read_status
from tidemill.config import Pipeline
from tidemill.contracts import RowAudit, RowDifference, RowFault, SnapshotReader, ValuePair
from tidemill.errors import Refused
from tidemill.log.reader import LogReader
from tidemill.model.block import Block
from tidemill.model.position import Ordering, Position
from tidemill.model.rowkeys import key_strings
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.service.position.positions import sink_positions
from tidemill.service.verify.row_chain import RowChain
from tidemill.service.verify.verdicts import KeyVerdict, TableVerdict

MOST = 1000
"""Keys of a table that are looked at again; with more, the counts are of these."""
_CHUNK_ROWS = 20_000
_POINTS = 200
_PAUSE_SECONDS = 0.5
_WHOLE = {"window": 1 << 30, "container_window": 1 << 30, "element_size_limit": (1 << 31) - 1}

_NOWHERE = Position("")


@dataclass(slots=True)
class _Suspect:
    """`digest` of the source's row; empty where it has none, None if nobody has looked. `high`: the place of the look
    that saw it first. `moved`: it was another one at the look before. `passed`: the sink had passed `high` before the
    last look, and differed all the same. `settled`: before the last two. At one alone the source's row may have changed
    between the looks at both sides, and the sink have the newer one."""

    fault: RowFault
    columns: tuple[str, ...] = ()
    values: tuple[ValuePair, ...] = ()
    digest: str | None = None
    high: Position = _NOWHERE
    moved: bool = False
    passed: bool = False
    settled: bool = False


_Suspects = dict[Bound, _Suspect]


class RowComparison:
    """`run`, and later `again` for the keys that differed."""

    def __init__(
        self, pipeline: Pipeline, sink: str, reader: SnapshotReader, audit: RowAudit, chain: RowChain,
        table: SnapshotTable, wait_seconds: float,
    ) -> None:  # fmt: skip
        self._pipeline, self._sink, self._reader, self._audit = pipeline, sink, reader, audit
        self._chain, self.table, self._wait = chain, table, wait_seconds
        self._source = pipeline.build_source()
        self._log = LogReader(pipeline.log_uri)
        self._suspects: _Suspects = {}

    def run(self) -> TableVerdict:
        rows, more = 0, False
        suspects: _Suspects = {}
        for chunk in self._chunks():
            with self._reader.read(chunk, self.table, []) as reading:
                for block in reading.blocks():
                    rows += block.rows
                    more = self._note(block, reading.high, suspects) or more
        extra = self._audit.extra(MOST + 1)
        more = more or len(extra) > MOST
        suspects |= {key: _Suspect(RowFault.EXTRA) for key in extra[:MOST]}
        return self._verdict(suspects, rows, more)

    def again(self, before: TableVerdict) -> TableVerdict:
        """The same for the keys that differed."""
        return self._verdict(self._suspects, before.rows, before.more)

    def is_gone(self, key: Bound) -> bool:
        """Whether the source has no row of this key."""
        for part in self.table.parts:
            with self._reader.read(Chunk(self.table.name, 0, part, points=(key,)), self.table, []) as reading:
                if any(block.rows for block in reading.blocks()):
                    return False
        return True

    def _verdict(self, suspects: _Suspects, rows: int, more: bool) -> TableVerdict:
        self._suspects = suspects = self._settle(suspects) if suspects else {}
        found = {key: one for key, one in suspects.items() if not one.moved}
        keys = tuple(KeyVerdict(key, one.fault, one.columns, one.values) for key, one in found.items())
        passed = all(one.settled for one in found.values())
        return TableVerdict(self.table.name, rows, keys, more, len(suspects) - len(keys), passed, self._audit.left_out)

    def _chunks(self) -> Iterator[Chunk]:
        number = 0
        for part in self.table.parts:
            lower: Bound | None = None
            while True:
                upper = self._reader.plan(self.table, part, lower, _CHUNK_ROWS)
                yield Chunk(self.table.name, number, part, lower, upper)
                number += 1
                if upper is None:
                    break
                lower = upper

    def _note(self, block: Block, high: Position, suspects: _Suspects) -> bool:
        """True if there were more than are looked at again."""
        found = self._differences(block, note=True)
        room = max(0, MOST - len(suspects))
        strings = _keys(block, [one.row for one in found[:room]])
        for key, one in zip(strings, found[:room], strict=True):
            suspects[key] = _Suspect(one.fault, one.columns, one.values, _digest(block, one.row), high)
        return len(found) > room

    def _differences(self, block: Block, *, note: bool) -> list[RowDifference]:
        return self._audit.compare(self._chain.rows(block), note=note)

    def _settle(self, suspects: _Suspects) -> _Suspects:
        """Of the suspects those that differ for good; when the time is over, those that still differ."""
        deadline = time.monotonic() + self._wait
        while True:
            over = time.monotonic() >= deadline
            suspects = self._again(suspects)
            if any(one.passed and not one.settled for one in suspects.values()):
                suspects = self._again(suspects)
            if all(one.settled for one in suspects.values()) or over:
                return suspects
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))

    def _again(self, before: _Suspects) -> _Suspects:
        """Of the suspects those that still differ."""
        passed = {high for high in {one.high for one in before.values()} if self._has_passed(high)}
        found: _Suspects = {}
        alone = [key for key, one in before.items() if one.fault is RowFault.EXTRA]
        others = [key for key, one in before.items() if one.fault is not RowFault.EXTRA]
        # A key that only the sink has is printed by the sink, and may be another text than the source's.
        groups = [[key] for key in alone] + [others[i : i + _POINTS] for i in range(0, len(others), _POINTS)]
        other = {key: seen for keys in groups if (seen := self._look_at(keys, before, found)) for key in keys}
        if other:
            left = self._audit.extra(MOST + 1)
            found |= {
                key: _compare(before[key], seen) for key, seen in other.items() if key in left or len(left) > MOST
            }
        for one in found.values():
            known, one.passed = one.passed, not one.moved and one.high in passed
            one.settled = known and one.passed
        return found

    def _look_at(self, keys: Sequence[Bound], before: _Suspects, found: _Suspects) -> _Suspect | None:
        """Adds those that differ. Of a key alone that the source has, but calls otherwise, it is to be asked whether
        the sink's row is that one: the answer is what to call it if it is not. The source's counts as seen by then."""
        there: set[Bound] = set()
        blocks: list[Block] = []
        high = _NOWHERE
        for part in self.table.parts:
            chunk = Chunk(self.table.name, 0, part, points=tuple(keys))
            with self._reader.read(chunk, self.table, []) as reading:
                high = reading.high
                for block in reading.blocks():
                    blocks.append(block)
                    strings = _keys(block, range(block.rows))
                    there.update(strings)
                    for one in self._differences(block, note=False):
                        key, digest = strings[one.row], _digest(block, one.row)
                        known = before.get(key) or before[keys[0]]
                        seen = _Suspect(one.fault, one.columns, one.values, digest, high)
                        found[key] = _compare(known, seen)
        extra = _Suspect(RowFault.EXTRA, digest="", high=high)
        if len(keys) == 1 and there:
            if keys[0] in there or before[keys[0]].fault is not RowFault.EXTRA:
                return None
            for block in blocks:
                self._differences(block, note=True)
            return extra
        for key in keys:
            if key not in there and self._audit.has(key):
                found[key] = _compare(before[key], replace(extra))
        return None

    def _has_passed(self, high: Position) -> bool:
        """Whether the sink has all that the stream had up to there: by its checkpoint, or, where that covers the whole
        log, by how far the log is, or capture, of a source in which others than the captured tables change."""
        reached = next((at.checkpoint for at in sink_positions(self._pipeline) if at.sink == self._sink), None)
        if reached is None or not reached.position or not high:
            return False
        tail = self._log.tail()
        places = [reached.position, *([tail.position] if tail.position and reached.offset >= tail.offset else [])]
        capture = read_status(self._pipeline.state_path)
        if capture is not None and capture.reached and reached.offset >= capture.offset:
            places.append(Position(capture.reached))
        return any(self._source.compare(place, high) in (Ordering.SAME, Ordering.AFTER) for place in places)


def _compare(known: _Suspect, now: _Suspect) -> _Suspect:
    """As it is now. The same row keeps the place of its first look; another one has moved, unless nobody had looked at
    the source for it yet."""
    if known.digest == now.digest:
        now.high, now.passed = known.high, known.passed
    else:
        now.moved = known.digest is not None or bool(now.digest)
    return now


def _keys(block: Block, rows: Sequence[int]) -> list[Bound]:
    found = key_strings(block, rows)
    if () in found:
        raise Refused(
            "rows differ, and their key has a type that no row can be looked up by again",
            fix="Compare the table by hand, or when nothing changes.",
        )
    return found


def _digest(block: Block, row: int) -> str:
    """Of the row's values, as Arrow prints them, none of them shortened. What stands beside them counts only where this
    row has some: whether its block has such a column depends on the other rows."""
    after, odd = block.batch.column("after").slice(row, 1).to_string(**_WHOLE), block.column("odd")
    beside = odd[row].as_py() if odd is not None else None
    return hashlib.sha256(f"{after}{beside or ''}".encode()).hexdigest()
