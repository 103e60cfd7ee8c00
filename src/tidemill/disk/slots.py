"""A small document that is replaced often and must be on disk each time: one write and one `fdatasync`.

The file has two slots of the same size. A document's number rises by one with each write and chooses the slot, so that
a write that is torn leaves the document before it. No name and no size changes: the disk gets one block, where
`replace_file` waits for a file, a name and its directory (ADR 51). So does one that need not be on disk: a name that
goes to another file is work for the journal of the file system, which everybody waits for who has to be on disk.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from tidemill.disk.private import open_file
from tidemill.disk.replace import replace_file, write_all

SLOT_BYTES = 4096


def read_newest(data: bytes, number: str) -> dict[str, Any] | None:
    """Of a file's content, the last document that was written wholly; `number` is the field that rises."""
    size = len(data) // 2
    found = [document for at in (0, size) if (document := _unpack(data[at : at + size]))]
    return max(found, key=lambda document: int(document[number]), default=None)


def read_document(data: bytes, number: str) -> dict[str, Any] | None:
    """The same of a file that an earlier version may have written, as JSON. `ValueError` where that is damaged."""
    if not data.startswith(b"{"):
        return read_newest(data, number)
    document: dict[str, Any] = orjson.loads(data)
    return document


def overwrite(path: Path, document: dict[str, Any], number: str) -> None:
    """Writes the next document, not durably; its number is that of the last one and one more. One writer at a time."""
    try:
        newest = read_newest(path.read_bytes(), number)
    except FileNotFoundError:
        newest = None
    file = SlotFile(path, number)
    try:
        file.write({number: newest[number] + 1 if newest else 1} | document, durable=False)
    finally:
        file.close()


class SlotFile:
    """Writes one. For one thread at a time, and for one process: who shares it takes a lock first."""

    def __init__(self, path: Path, number: str) -> None:
        self.path = path
        self._number = number
        self._file = -1
        self._slot = 0

    def write(self, document: dict[str, Any], *, durable: bool = True) -> None:
        """On disk when it returns; without `durable` a power cut may leave the document before, or none. After an error
        readers find the document before, and the call may be made again. A file that is not there, has other content or
        too little room is replaced as a whole; the directory is there."""
        text = orjson.dumps(document)
        record = b"%08x %s\n" % (zlib.crc32(text), text)
        if self._file < 0 or self._was_replaced():
            self._open()
        at = int(document[self._number]) % 2
        if len(record) > self._slot:
            self.close()
            size = -(-len(record) // SLOT_BYTES) * SLOT_BYTES
            slots = [bytes(size), bytes(size)]
            slots[at] = record.ljust(size, b"\0")
            replace_file(self.path, b"".join(slots), durable=durable)
            return
        before = os.pread(self._file, len(record), at * self._slot)
        try:
            write_all(self._file, at * self._slot, [memoryview(record)])
            if durable:
                os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                write_all(self._file, at * self._slot, [memoryview(before)])
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _was_replaced(self) -> bool:
        """By another process, or by somebody who restored a backup."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(self._file))

    def _open(self) -> None:
        self.close()
        self._slot = 0
        try:
            self._file = open_file(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        size = os.fstat(self._file).st_size
        # A document without slots is JSON: so were checkpoints of earlier versions.
        if size % (2 * SLOT_BYTES) == 0 and os.pread(self._file, 1, 0) != b"{":
            self._slot = size // 2


def _unpack(slot: bytes) -> dict[str, Any] | None:
    text = slot[9:].partition(b"\n")[0]
    try:
        return orjson.loads(text) if int(slot[:8], 16) == zlib.crc32(text) else None
    except ValueError:
        return None
