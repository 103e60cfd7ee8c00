"""The log in a local directory: files that grow, memory-mapped by readers."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.disk.private import make_directory, open_file, sync_path, tighten
from tidemill.disk.replace import replace_file, write_all
from tidemill.disk.slots import SLOT_BYTES, overwrite
from tidemill.errors import LogCorrupt, LogError
from tidemill.log.store import LOCK, NOTE, RESTORE

# A mapped file keeps its disk space when it is trimmed, so only few stay mapped.
_MAPS = 2
# What file systems say that have one name per file.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)
# A directory that the user named may hold other files, which nobody here reads, removes or changes.
_OURS = re.compile(rf"\d{{20}}\.idx|(\d{{20}}|spill-).*\.seg|(acknowledged|position)\.json(\.tmp)?|{re.escape(LOCK)}")


class LocalStore:
    appends = True

    def __init__(self, directory: str, *, fsync: bool = True, ours: bool = False) -> None:
        """`ours`: nobody but Tidemill keeps files in this directory."""
        self.label = directory
        self._directory = Path(directory)
        self._fsync = fsync
        self._ours = ours
        self._files: dict[str, int] = {}
        self._uncut: set[str] = set()
        self._maps: OrderedDict[str, pa.Buffer] = OrderedDict()
        self._lock: int | None = None

    def names(self) -> list[str]:
        try:
            return sorted(filter(_OURS.fullmatch, os.listdir(self._directory)))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._directory / name).st_size
        except FileNotFoundError:
            return None

    def signature(self, name: str) -> Hashable:
        try:
            stat = os.stat(self._directory / name)
        except FileNotFoundError:
            return None
        if stat.st_size and stat.st_size % (2 * SLOT_BYTES) == 0:
            return self.read(name)  # of a note: two that were written within the same tick have the same times
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        try:
            with open(self._directory / name, "rb", buffering=0) as file:
                file.seek(at)
                return file.read() if size is None else file.read(size)
        except FileNotFoundError:
            return b""

    def recall(self, name: str) -> bytes:
        return self.read(name)

    def view(self, name: str, at: int, size: int) -> pa.Buffer:
        mapped = self._maps.get(name)
        if mapped is None or mapped.size < at + size:
            mapped = self._map(name)
            if mapped.size < at + size:
                what = f"{name} has {mapped.size} bytes where its index says {at + size}"
                raise LogCorrupt(what, where=self.label, fix=RESTORE)
        with suppress(KeyError):  # a worker's sinks read side by side: another thread's file took its place just now
            self._maps.move_to_end(name)
        return mapped.slice(at, size)

    def _map(self, name: str) -> pa.Buffer:
        try:
            with pa.memory_map(str(self._directory / name)) as file:
                mapped = file.read_buffer()
        except FileNotFoundError as error:
            fix = "What it held was delivered and trimmed; raise retention_seconds or retention_bytes to keep it."
            raise LogError(f"{name} is not in the log any more", where=self.label, fix=fix) from error
        except OSError as error:
            raise LogError(f"{name} cannot be read: {error}", where=self.label) from error
        self._maps[name] = mapped
        while len(self._maps) > _MAPS:
            self._maps.popitem(last=False)
        return mapped

    def write(self, name: str, at: int, buffers: Sequence[pa.Buffer | bytes]) -> None:
        with self._explain(f"cannot write {name}"):
            new = name not in self._files
            file = self._open(name)
            if at == 0 or name in self._uncut:
                os.ftruncate(file, at)
                self._uncut.discard(name)
            try:
                write_all(file, at, [memoryview(buffer).cast("B") for buffer in buffers])
                if self._fsync:
                    os.fdatasync(file)
                    if new:
                        sync_path((self._directory / name).parent)
            except BaseException:
                self._uncut.add(name)
                with suppress(OSError):
                    os.ftruncate(file, at)
                    self._uncut.discard(name)
                raise

    def own(self, name: str) -> str:
        return name

    def publish(self, name: str, at: int, record: bytes) -> None:
        self.write(name, at, [record])

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with self._explain(f"cannot write {name}"):
            self._make_folder(name)
            replace_file(self._directory / name, data, durable=durable and self._fsync)

    def note(self, name: str, fields: dict[str, Any]) -> None:
        with self._explain(f"cannot write {name}"):
            self._make_folder(name)
            overwrite(self._directory / name, fields, NOTE)

    def cut(self, name: str, size: int) -> None:
        if size == 0:
            self.remove(name)
            return
        with self._explain(f"cannot shorten {name}"):
            file = self._open(name)
            os.ftruncate(file, size)
            if self._fsync:
                os.fdatasync(file)

    def move(self, old: str, new: str) -> None:
        with self._explain(f"cannot rename {old}"):
            os.rename(self._directory / old, self._directory / new)
            self.release(new)
            self._maps.pop(old, None)
            if old in self._files:
                self._files[new] = self._files.pop(old)
            if self._fsync:
                sync_path(self._directory)

    def copy(self, old: str, new: str) -> None:
        with self._explain(f"cannot copy {old}"):
            target = self._directory / new
            target.unlink(missing_ok=True)  # of an attempt before
            try:
                os.link(self._directory / old, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                replace_file(target, (self._directory / old).read_bytes(), durable=self._fsync)
            if self._fsync:
                sync_path(self._directory)

    def below(self, folder: str) -> list[str]:
        files = [path for path in (self._directory / folder).rglob("*") if path.is_file()]
        return sorted(path.relative_to(self._directory).as_posix() for path in files)

    def remove_folder(self, folder: str) -> None:
        with suppress(OSError):
            os.rmdir(self._directory / folder)

    def remove(self, name: str) -> None:
        self.release(name)
        with self._explain(f"cannot remove {name}"), suppress(FileNotFoundError):
            os.unlink(self._directory / name)

    def release(self, name: str) -> None:
        self._uncut.discard(name)
        self._maps.pop(name, None)
        if name in self._files:
            os.close(self._files.pop(name))

    def reopen(self) -> LocalStore:
        return LocalStore(self.label, fsync=self._fsync, ours=self._ours)

    def unmap(self) -> None:
        self._maps.clear()

    def drop_pages(self, name: str) -> None:
        with suppress(OSError, AttributeError):  # it is advice, and not every system takes it
            file = os.open(self._directory / name, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    def lock(self) -> None:
        with self._explain("cannot make the log's directory"):
            make_directory(self._directory, ours=self._ours)
            file = open_file(self._directory / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip()
            os.close(file)
            fix = "Only one capture may run per pipeline. Stop the other one; a lock of a dead process frees itself."
            raise LogError(f"another process writes this log (pid {holder})", where=self.label, fix=fix) from error
        os.ftruncate(file, 0)
        # On a full disk the lock still holds; only the message of a second writer is poorer.
        with suppress(OSError):
            os.pwrite(file, str(os.getpid()).encode(), 0)
        self._lock = file
        for name in self.names():  # of a version that left them open to everybody
            with suppress(FileNotFoundError):
                tighten(self._directory / name)

    def check_lock(self) -> None:
        """The kernel keeps the lock while the process lives."""

    def close(self) -> None:
        for name in list(self._files):
            self.release(name)
        self._maps.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_folder(self, name: str) -> None:
        if "/" in name:
            make_directory((self._directory / name).parent)

    def _open(self, name: str) -> int:
        if name not in self._files:
            self._make_folder(name)
            self._files[name] = open_file(self._directory / name, os.O_RDWR | os.O_CREAT)
        return self._files[name]

    @contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            fix = "Free some space; nothing is lost, the write is tried again." if full else ""
            raise LogError(f"{what}: {error.strerror or error}", where=self.label, fix=fix) from error
