"""The log in an object store, or any file system of pyarrow.fs: whole objects, never added to.

An object store cannot refuse a second writer; the newest one wins, and the older one, woken from a partition or a
SIGSTOP, finds out before it writes and again before it makes an append visible. Whatever it still writes cannot hurt:
data and spills carry the writer's own id and a number in their names, so that nobody writes over or removes another's,
and no attempt writes over an earlier one.

Only an index record has a name that two writers share, because readers look for the next one by name. A record that is
visible never changes: it is put only where none is, and put again only as the same bytes. pyarrow.fs has no conditional
put, so one window is left. The older writer has looked at the lock and at the name, and sleeps; the newer one takes
over and publishes its first record, which has the same name; then the older one's request arrives and replaces it, at
any later time. The log is then damaged if the newer writer has appended more: the two records end at different offsets.
Nothing mends that, but nobody goes on in silence. The older writer looks at the lock once more after its request, the
newer one looks at its first record before every append, and both stop with `LogTakenOver`. Readers, and a writer that
opens the log, compare each record with its neighbour and with what they saw before, and stop with `LogCorrupt`: the log
has to be moved away. Who must close this window keeps the log in a directory, where the kernel holds the lock.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.fs as pafs

from tidemill.errors import LogError, LogTakenOver
from tidemill.log.store import LOCK, RESTORE

# Objects carry whole seconds as their time of change, too coarse to see one by; they are read this often instead.
_LOOKS_PER_SECOND = 4
# What was just read need not be asked for again by the next reader of this process, if it is small.
_REMEMBERED_SECONDS, _REMEMBERED_BYTES, _REMEMBERED = 0.25, 4096, 512
# An index record begins with its checksum and its length, which tell it from every other.
_STAMP_BYTES = 24


# No folders there: making one would leave an empty object.
_FLAT = ("s3", "gcs", "abfs")


class ObjectStore:
    appends = False

    def __init__(self, filesystem: pafs.FileSystem, path: str, *, label: str = "") -> None:
        self.label = label or path
        self._fs = filesystem
        self._path = path
        self._token = b""
        self._id = ""
        self._attempts = itertools.count()
        self._first: tuple[str, bytes] | None = None
        """The first record that this writer has put, by its name and how it begins: an older writer's may come late."""
        self._looks: ThreadPoolExecutor | None = None  # a writer's
        self._remembered: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._remembering = threading.Lock()

    def names(self) -> list[str]:
        with self._explain("cannot list the log"):
            infos = self._fs.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.File)

    def size(self, name: str) -> int | None:
        with self._explain(f"cannot look at {name}"):
            try:
                # Not `get_file_info`: where there is no object it asks once more, for a folder of that name.
                with self._fs.open_input_file(self._at(name)) as file:
                    return int(file.size())
            except FileNotFoundError:
                return None

    def signature(self, name: str) -> Hashable:
        return int(time.monotonic() * _LOOKS_PER_SECOND)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        try:
            with self._fs.open_input_file(self._at(name)) as file:
                return file.read_at(file.size() - at if size is None else size, at)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LogError(f"cannot read {name}: {error}", where=self.label) from error

    def recall(self, name: str) -> bytes:
        with self._remembering:
            since, data = self._remembered.get(name, (0.0, b""))
        if data and time.monotonic() - since < _REMEMBERED_SECONDS:
            return data
        data = self.read(name)
        if 0 < len(data) <= _REMEMBERED_BYTES:
            with self._remembering:
                self._remembered[name] = time.monotonic(), data
                self._remembered.move_to_end(name)
                if len(self._remembered) > _REMEMBERED:
                    self._remembered.popitem(last=False)
        return data

    def view(self, name: str, at: int, size: int) -> pa.Buffer:
        data = self.read(name, at, size)
        if len(data) < size:
            fix = "If it was delivered and trimmed, raise retention_seconds or retention_bytes to keep it."
            raise LogError(f"{name} has not the {at + size} bytes that are needed", where=self.label, fix=fix)
        return pa.py_buffer(data)

    def write(self, name: str, at: int, buffers: Sequence[pa.Buffer | bytes]) -> None:
        if at:
            raise ValueError("an object cannot be added to")
        with self._explain(f"cannot write {name}"):
            self._make_folder(name)
            try:
                with self._fs.open_output_stream(self._at(name)) as file:
                    for buffer in buffers:
                        file.write(buffer)
            except OSError:
                self._remove(name)
                raise

    def own(self, name: str) -> str:
        stem, dot, suffix = name.rpartition(".")
        return f"{stem}-{self._id}-{next(self._attempts)}{dot}{suffix}"

    def publish(self, name: str, at: int, record: bytes) -> None:
        """The same record that is there already is an earlier attempt whose answer was lost."""
        if at:
            raise ValueError("an object cannot be added to")
        assert self._looks is not None, "only the holder of the lock publishes"
        # Three requests that do not need each other's answers.
        first, found = self._looks.submit(self._check_first), self._looks.submit(self.read, name)
        self.check_lock()
        first.result()
        there = found.result()
        if not record.startswith(there):  # nothing, or torn where a put is not atomic
            raise LogTakenOver(f"another writer has made {name}", where=self.label)
        if there != record:
            self._first = self._first or (name, record[:_STAMP_BYTES])
            self.replace(name, record)
        # Whoever takes over from here on lists the log after this record has arrived.
        self.check_lock()

    def _check_first(self) -> None:
        if self._first is None:
            return
        name, stamp = self._first
        there = self.read(name, 0, _STAMP_BYTES)
        if there and there != stamp:  # it is not there once it was trimmed
            fix = (
                "An older capture of this log was still alive, and its record came late. See to it that only one runs,"
                f" then start it again. If the log is refused then: {RESTORE}"
            )
            raise LogTakenOver(f"another writer has replaced {name}", where=self.label, fix=fix)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with self._explain(f"cannot write {name}"):
            self._make_folder(name)
            with self._fs.open_output_stream(self._at(name)) as file:
                file.write(data)

    def note(self, name: str, fields: dict[str, Any]) -> None:
        self.replace(name, orjson.dumps(fields))

    def cut(self, name: str, size: int) -> None:
        if size:
            raise ValueError("an object cannot be shortened")
        self.remove(name)

    def move(self, old: str, new: str) -> None:
        with self._explain(f"cannot rename {old}"):
            self._fs.move(self._at(old), self._at(new))

    def copy(self, old: str, new: str) -> None:
        with self._explain(f"cannot copy {old}"):
            self._fs.copy_file(self._at(old), self._at(new))

    def below(self, folder: str) -> list[str]:
        with self._explain(f"cannot list {folder}"):
            infos = self._fs.get_file_info(pafs.FileSelector(self._at(folder), allow_not_found=True, recursive=True))
        return sorted(posixpath.relpath(info.path, self._path) for info in infos if info.type == pafs.FileType.File)

    def remove_folder(self, folder: str) -> None:
        if self._fs.type_name not in _FLAT and not self.below(folder):
            with suppress(OSError):
                self._fs.delete_dir(self._at(folder))

    def _make_folder(self, name: str) -> None:
        if "/" in name and self._fs.type_name not in _FLAT:
            self._fs.create_dir(posixpath.dirname(self._at(name)), recursive=True)

    def remove(self, name: str) -> None:
        with self._explain(f"cannot remove {name}"):
            self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self._fs.delete_file(self._at(name))
        except FileNotFoundError:
            pass
        except OSError:
            if self.size(name) is not None:
                raise

    def release(self, name: str) -> None:
        pass

    def unmap(self) -> None:
        """Nothing is mapped."""

    def drop_pages(self, name: str) -> None:
        """Nothing is in memory."""

    def reopen(self) -> ObjectStore:
        """Itself: requests may come from any thread."""
        return self

    def lock(self) -> None:
        self._id = uuid.uuid4().hex[:12]
        self._token = f"{os.getpid()} {self._id}".encode()
        self._looks = self._looks or ThreadPoolExecutor(2, "log-looks")
        with self._explain("cannot make the log's directory"):
            self._fs.create_dir(self._path, recursive=True)
        self.replace(LOCK, self._token)

    def check_lock(self) -> None:
        holder = self.read(LOCK)
        if holder != self._token:
            who = holder.decode(errors="replace").split(" ")[0]
            raise LogTakenOver(f"another process (pid {who}) has taken over this log", where=self.label)

    def close(self) -> None:
        if self._looks is not None:
            self._looks.shutdown()
            self._looks = None

    def _at(self, name: str) -> str:
        return posixpath.join(self._path, name)

    @contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogError(f"{what}: {error}", where=self.label) from error
