"""Where the log's files live. `LocalStore` grows files in a directory; `ObjectStore` puts whole objects.

Both give the writer the same promise: `write` and `replace` have happened durably and wholly when they return,
and when they raise `LogError` the file is as it was before, so the same call may be tried again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from tidemill.errors import ConfigError

LOCK = "writer.lock"
NOTE = "number"
"""The field of a note in a directory that says which of its two slots is the newer one (`disk/slots.py`)."""

RESTORE = "Restore the log from a copy, or move it away: capture then resumes from the checkpoint."
"""The way out of a log that is damaged."""


class Store(Protocol):
    label: str
    """For messages: the URI without its credentials."""

    appends: bool
    """Whether `write` may add to a file that is there. If not, each append is a segment of its own."""

    def names(self) -> list[str]:
        """Every file of the log, sorted; none when the log does not exist yet."""

    def size(self, name: str) -> int | None:
        """None: there is no such file. Cheap: the idle reader asks every few milliseconds."""

    def signature(self, name: str) -> Hashable:
        """Differs when a file made by `replace` or `note` may have changed."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """What is there of the range; empty when the file is not there."""

    def recall(self, name: str) -> bytes:
        """`read` of a whole file that does not change once it is there. It may come from memory for a moment."""

    def view(self, name: str, at: int, size: int) -> pa.Buffer:
        """The range without copying it where that is possible; `LogError` when the file is gone or shorter."""

    def own(self, name: str) -> str:
        """What this writer calls a data file. In an object store every call gives another name, so that no writer and
        no attempt can write over or remove what another one has published."""

    def publish(self, name: str, at: int, record: bytes) -> None:
        """`write` for an index record, by the holder of the lock only: `LogTakenOver` if that is somebody else, or if
        somebody else has made an object of this name. After any other error, in an object store, the record may be
        visible or become so: only the same bytes may be published there."""

    def write(self, name: str, at: int, buffers: Sequence[pa.Buffer | bytes]) -> None:
        """Makes the file end with these bytes from `at` on."""

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """A reader sees the old bytes or the new ones, never a mixture."""

    def note(self, name: str, fields: dict[str, Any]) -> None:
        """For what is written often and need not be on disk. A reader finds two slots of which one is whole, or, in an
        object store, JSON."""

    def cut(self, name: str, size: int) -> None:
        """Shortens the file; at 0 it is removed."""

    def move(self, old: str, new: str) -> None: ...

    def copy(self, old: str, new: str) -> None:
        """Durably. Where files can have two names this is the second, and costs no room; nobody changes either."""

    def below(self, folder: str) -> list[str]:
        """Every file in a folder of the log and in those inside, sorted, each with its folders before it. Who writes
        one there need not make the folder first."""

    def remove(self, name: str) -> None:
        """Does nothing when there is no such file."""

    def remove_folder(self, folder: str) -> None:
        """Does nothing when there is none, or when files are in it again."""

    def release(self, name: str) -> None:
        """The writer is done with this file."""

    def unmap(self) -> None:
        """A reader is done for now: what `view` gave is held by nobody but who has it still."""

    def drop_pages(self, name: str) -> None:
        """Nobody reads this file soon: the system need not keep what is on disk in memory as well."""

    def reopen(self) -> Store:
        """For one more reader, maybe in another thread. Of an object store they share what `recall` remembers."""

    def lock(self) -> None:
        """Makes this process the log's only writer, or raises `LogError`."""

    def check_lock(self) -> None:
        """Raises `LogTakenOver` if another writer has taken over."""

    def close(self) -> None: ...


def open_store(uri: str | Store, *, fsync: bool = True, ours: bool = False) -> Store:
    """A plain path and `file://` are a directory; every other scheme is whatever pyarrow.fs makes of it. `ours`: the
    directory holds nothing but this log, and nobody else may look into it."""
    from tidemill.log.local import LocalStore
    from tidemill.log.objects import ObjectStore

    if not isinstance(uri, str):
        return uri
    if "://" not in uri:
        return LocalStore(uri, fsync=fsync, ours=ours)
    try:
        filesystem, path = pafs.FileSystem.from_uri(_with_single_puts(uri))
    except (pa.ArrowException, ValueError, OSError) as error:
        fix = "Give a directory, or a URI that pyarrow.fs understands: file://, s3://, gs://, hdfs://."
        # Arrow quotes the URI that it does not understand.
        reason = str(error).replace(_with_single_puts(uri), masked_uri(uri))
        raise ConfigError(f"the change log's URI cannot be opened: {reason}", where=masked_uri(uri), fix=fix) from None
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalStore(path, fsync=fsync, ours=ours)
    return ObjectStore(filesystem, path, label=masked_uri(uri))


def _with_single_puts(uri: str) -> str:
    """An object is put in one request where it fits into one. Otherwise Arrow begins an upload in parts for each, which
    takes three."""
    if not uri.startswith("s3://") or "allow_delayed_open=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true"


def masked_uri(uri: str) -> str:
    """Without user, password and options, any of which may be a secret. A password may hold a "/" or an "@" that nobody
    escaped, and hiding a little too much is the better mistake. A plain path stays as it is."""
    if "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    place = rest.partition("?")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"
