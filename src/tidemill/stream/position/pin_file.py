"""The batch under way, on disk before a lane sees it: after a crash the same batch comes again (invariant 5).

Real time pins here; micro-batches are pinned by Spark's offset log. A pin costs one write and one `fdatasync`
(`disk/slots.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.disk.private import make_directory, sync_path
from tidemill.disk.slots import SlotFile, read_newest
from tidemill.errors import StreamError
from tidemill.model.position import Offset

_NAME = "pinned"
_NUMBER = "number"


@dataclass(frozen=True, slots=True)
class PinnedBatch:
    """All that a replay needs to be the same: the offsets and how they are spread over lanes."""

    start: Offset
    end: Offset
    lanes: int
    by: str


class PinFile:
    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._slots = SlotFile(self._path, _NUMBER)
        self._last: int | None = None  # number of the last pin, once there is one

    def read(self) -> PinnedBatch | None:
        """The last pin that was written wholly."""
        try:
            newest = read_newest(self._path.read_bytes(), _NUMBER)
        except FileNotFoundError:
            newest = None
        self._last = int(newest[_NUMBER]) if newest else None
        return PinnedBatch(newest["start"], newest["end"], newest["lanes"], newest["by"]) if newest else None

    def write(self, batch: PinnedBatch) -> None:
        """On disk when it returns."""
        try:
            if self._last is None:
                make_directory(self._path.parent)
                self.read()
            number = (self._last or 0) + 1
            fields = {"start": batch.start, "end": batch.end, "lanes": batch.lanes, "by": batch.by}
            self._slots.write({_NUMBER: number} | fields)
            self._last = number
        except OSError as error:
            raise StreamError(
                f"the bounds of a batch could not be noted: {error.strerror or error}",
                where=str(self._path),
                fix="Check the directory's permissions and free space; it is tried again.",
            ) from error

    def clear(self) -> None:
        """Durably: an operator moved the checkpoint, or the file is of another life of the pipeline."""
        self.close()
        if self._path.exists():
            self._path.unlink()
            sync_path(self._path.parent)

    def close(self) -> None:
        self._slots.close()
        self._last = None
