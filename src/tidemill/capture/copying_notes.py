"""What the log says of tables that are being copied: sinks excuse changes of rows that are still to come
(log/copying.py).

It outlives the state store's account: a sink that is away may not have come to the end of the copy before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidemill.capture.copied_tables import find_copied, is_filtered
from tidemill.contracts import MarkingSource, SnapshotRecord, SnapshotSource, SnapshotStore
from tidemill.log.copying import EVERY, read_copying, read_earlier, write_copying, write_earlier
from tidemill.log.writer import LogWriter
from tidemill.model.position import Offset, Position
from tidemill.model.snapshot import TableState
from tidemill.telemetry import events


class CopyingNotes:
    """For the loop's thread."""

    def __init__(
        self, source: SnapshotSource, log: LogWriter, store: SnapshotStore, pipeline: str, filtered: Collection[str],
        quarantined: Callable[[], Mapping[str, Offset]],
    ) -> None:  # fmt: skip
        """`filtered` and `quarantined` as `ChunkAdopter` has them."""
        self._source, self._log, self._store, self._pipeline = source, log, store, pipeline
        self._filtered, self._quarantined = frozenset(filtered), quarantined
        self._copying: dict[str, Offset | None] | None = None  # as it stands in the log
        self._earlier: dict[str, Offset] = {}  # the same

    def tell_copied(self) -> dict[str, Position]:
        copied = find_copied(self._store, self._pipeline, self._filtered)
        if isinstance(self._source, MarkingSource):
            self._source.note_copied(copied)
        return copied

    def note(self, record: SnapshotRecord | None) -> None:
        if self._copying is None:
            self._copying, self._earlier = read_copying(self._log.store), read_earlier(self._log.store)
            if None in self._copying.values() and not self._store.records(self._pipeline, 1):
                self._copying = self._give_up(self._copying)
        tables = self._store.tables(self._pipeline, record.id) if record is not None else []
        going = {
            table.name for table in tables
            if table.state not in (TableState.READY, TableState.FAILED)
            and not is_filtered(table.structure, self._filtered)
        }  # fmt: skip
        if record is not None and record.where:
            going = set()
        elif record is not None and not tables:
            going = {EVERY}
        going |= {  # the copy, or the end of it, has not come to the sinks yet
            name for name, first in self._quarantined().items()
            if name in self._copying and ((until := self._copying[name]) is None or until > first)
        }  # fmt: skip
        ended = {name for name, until in self._copying.items() if until is None and name not in going}
        ready = self.tell_copied() if ended else {}
        # No row comes any more of a table whose copy failed or was cancelled: none of its events is excused.
        noted: dict[str, Offset | None] = {
            name: self._log.tail.offset if name in ended else until
            for name, until in self._copying.items()
            if name not in ended or name in ready
        }
        # A sink that is away may not have come to the end of the copy before.
        noted |= {name: until for name, until in self._earlier.items() if name in ended and name not in ready}
        noted |= dict.fromkeys(going)
        if noted != self._copying:
            last = self._earlier | {name: until for name, until in self._copying.items() if until is not None}
            self._note_earlier(self._earlier | {name: until for name, until in last.items() if name in going})
            write_copying(self._log.store, noted)
            self._copying = noted
            self._note_earlier({name: until for name, until in last.items() if name in going})

    def _note_earlier(self, earlier: dict[str, Offset]) -> None:
        if earlier != self._earlier:
            write_earlier(self._log.store, earlier)
            self._earlier = earlier

    def _give_up(self, copying: dict[str, Offset | None]) -> dict[str, Offset | None]:
        """The log knows of a copy that the state store has lost: nobody goes on with it, and no row is to come."""
        lost = {name for name, until in copying.items() if until is None}
        events.warn(
            "snapshot.state_lost", tables=",".join(sorted(lost - {EVERY})),
            fix="The state store does not know the snapshot that was being made, so that it is not gone on with, and"
            " rows are missing. Copy the tables again: tidemill snapshot start FILE.",
        )  # fmt: skip
        kept = {name: until for name, until in copying.items() if name not in lost}
        kept |= {name: until for name, until in self._earlier.items() if name in lost}
        write_copying(self._log.store, kept)
        return kept
