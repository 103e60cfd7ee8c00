"""Who may work on a pipeline's state directory: one process at a time, and only in the directory that is its own.

`run` and every command that needs a stopped pipeline hold `run.lock` while they work; the kernel frees it when the
process ends, however it ends. `identity.json` tells a copy of the directory from the directory: two copies would both
deliver the same events, or give the same offsets to different ones (invariant 5).

A copy is recognised by two signs. The directory that the record names is another one, and has the same record: both
are there. Or the record's file has another inode than it had when it was written (or another generation of it: numbers
are used again): it was copied or restored. Neither sign changes when a directory is renamed, or when its volume is
mounted by another machine or container. File systems that may give a file another inode after a mount (FUSE, 9p,
overlays) have only the first sign; a copy of a whole volume keeps both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tidemill.config import Pipeline
from tidemill.config.advice import fill_in
from tidemill.disk.private import make_directory, open_file, sync_path
from tidemill.errors import AlreadyRunning, ConfigError, EnvironmentProblem, StateError, is_retryable
from tidemill.log.local import LocalStore
from tidemill.log.store import open_store
from tidemill.retry import RetryPolicy
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.telemetry import events

LOCK, IDENTITY = "run.lock", "identity.json"
_FS_IOC_GETVERSION = 0x80087601  # linux/fs.h
# Where a file keeps its inode for as long as it lives, whoever mounts the volume.
_KEEP_INODES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "nfs", "nfs4"})


@contextmanager
def lock_pipeline(pipeline: Pipeline, *, adopt: bool = False) -> Iterator[None]:
    """Holds the pipeline's state directory, which is made if it is missing. `AlreadyRunning` at once if another process
    has it, `EnvironmentProblem` if it is a copy; nothing else is touched then. With `adopt` a copy becomes the
    pipeline's own directory."""
    directory = pipeline.state_path
    with _explain(pipeline):
        make_directory(directory)
        file = open_file(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        with _explain(pipeline):
            _take(file, pipeline)
            if adopt:
                own = Identity(uuid.uuid4().hex, str(directory.resolve()))
                _claim(pipeline, own, keep=True)  # first: a copy that is not recorded yet is only refused once more
                _record(directory, own)
            else:
                _check_identity(pipeline)
        yield
    finally:
        os.close(file)


@contextmanager
def lock_pipeline_of(pipeline: Pipeline, predecessor: LeaseProcess | None, seconds: float) -> Iterator[None]:
    """`lock_pipeline` after a takeover. The predecessor has lost its lease and is stopping: it has `seconds`. If it is
    frozen it never ends by itself; on this machine it is ended then (`LeaseProcess.end`)."""
    waits = RetryPolicy(first=0.1, most=0.1, seconds=seconds if predecessor is not None else 0.0)
    with ExitStack() as held:

        def take() -> None:
            held.enter_context(lock_pipeline(pipeline))

        try:
            waits.run(take, worth=lambda error: isinstance(error, AlreadyRunning))
        except AlreadyRunning:
            if predecessor is None or not predecessor.end():
                raise
            events.warn("lease.holder_ended", pipeline=pipeline.name, process=str(predecessor))
            waits.run(take, worth=lambda error: isinstance(error, AlreadyRunning))
        yield


@contextmanager
def lock_stopped_pipeline(pipeline: Pipeline) -> Iterator[None]:
    """For a command that works where a stopped pipeline stood: also no capture process that outlived its `run` writes
    the log any more. In an object store the writer's lock is not taken (that would push a running writer out); a stream
    on another machine is stopped by the checkpoint's version."""
    with lock_pipeline(pipeline):
        store = open_store(pipeline.log_uri, ours=pipeline.owns_log)
        if not isinstance(store, LocalStore):
            yield
            return
        store.lock()
        try:
            yield
        finally:
            store.close()


def lock_holder(directory: Path) -> str | None:
    """Who holds a pipeline's state directory; empty if nobody does, None if no process ever did. Changes nothing."""
    try:
        file = os.open(directory / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(file)
    finally:
        os.close(file)
    return ""


def find_copy(pipeline: Pipeline) -> EnvironmentProblem | None:
    """What `lock_pipeline` would say of a state directory that is a copy. Takes no lock and changes nothing."""
    directory = pipeline.state_path.resolve()
    known = _read(directory)
    return _copy_of(pipeline, directory, known) if known is not None else None


def check_move(before: Pipeline, now: Pipeline) -> None:
    """`ConfigError` where a changed document names a state directory that has nothing of the pipeline, which has run:
    it would begin anew under offsets that sinks know, and what its log holds would never be delivered."""
    old, new = before.state_path, now.state_path
    if old.resolve() == new.resolve() or _read(old) is None or _read(new) is not None:
        return
    raise ConfigError(
        f'pipeline "{now.name}" has its state in another directory than the document says now, where there is none',
        where=f"{new}, state_dir",
        fix=f"Nothing was changed. Stop the pipeline, move {old} there, then change the document; or leave state_dir.",
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """`id` is random and shared by all copies; `path` and `inode` are what a copy has not."""

    id: str
    path: str
    inode: int = 0
    filesystem: str = ""
    generation: int = 0


def _take(file: int, pipeline: Pipeline) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise AlreadyRunning(
            f'pipeline "{pipeline.name}" is in use by {_holder(file)}',
            where=str(pipeline.state_path),
            fix="Nothing was changed. Stop the pipeline first (one of a server by"
            f' "tidemill pipelines stop {pipeline.name}"), or let it go on; the lock of a dead process frees itself.',
        ) from error
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
    with suppress(OSError):  # on a full disk the lock holds all the same; only a second process's message is poorer
        os.ftruncate(file, 0)
        os.pwrite(file, orjson.dumps(holder), 0)


def _holder(file: int) -> str:
    try:
        found = orjson.loads(os.pread(file, 4096, 0))
        return f"pid {found['pid']} on {found['host']} since {found['since']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "a process that is just starting"


def _claim(pipeline: Pipeline, identity: Identity, *, keep: bool = False) -> None:
    """What the state store kept for a directory that is gone says nothing about this one."""
    with closing(pipeline.build_state()) as state:
        state.claim(pipeline.name, identity.id, keep=keep)


def _check_identity(pipeline: Pipeline) -> None:
    directory = pipeline.state_path.resolve()
    known = _read(directory)
    if known is None:  # a new directory, or one from before directories had an identity
        known = Identity(uuid.uuid4().hex, str(directory))
        _claim(pipeline, known)  # first: killed in between, the directory is new once more
        _record(directory, known)
        return
    if problem := _copy_of(pipeline, directory, known):
        raise problem
    if known.path != str(directory):
        events.emit("pipeline.state_moved", pipeline=pipeline.name, before=known.path, now=str(directory))
        _record(directory, replace(known, path=str(directory)))
    try:
        _claim(pipeline, known)
    except StateError as error:  # who needs the store waits for it; this directory had it before
        if not is_retryable(error):
            raise
        events.warn("pipeline.state_unreachable", pipeline=pipeline.name, error=error.what, where=error.where)


def _copy_of(pipeline: Pipeline, directory: Path, known: Identity) -> EnvironmentProblem | None:
    first = Path(known.path)
    twin = _read(first) if first != directory else None
    if twin is not None and twin.id == known.id and not os.path.samefile(first, directory):
        return _copied_error(pipeline, f"a copy of {first}, which is still there")
    with (directory / IDENTITY).open("rb") as file:
        inode, generation = os.fstat(file.fileno()).st_ino, _generation(file.fileno())
    stable = {known.filesystem, _filesystem(directory)} <= _KEEP_INODES
    reborn = bool(known.generation and generation and known.generation != generation)
    if stable and (known.inode != inode or reborn):
        return _copied_error(pipeline, "a copy, or was restored from one")
    return None


def _copied_error(pipeline: Pipeline, what: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f'the state directory of pipeline "{pipeline.name}" is {what}',
        where=str(pipeline.state_path),
        fix=fill_in(
            "Two copies that run would deliver events twice, or under offsets that sinks know already. Run the "
            "original, or give this pipeline another state_dir. If the original will never run again, and nothing was "
            'delivered from it since the copy was made, make this one the pipeline\'s own: "tidemill adopt FILE".',
            pipeline,
        ),
    )


def _read(directory: Path) -> Identity | None:
    try:
        return Identity(**orjson.loads((directory / IDENTITY).read_bytes()))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (orjson.JSONDecodeError, TypeError):  # torn by a power cut while it was first written
        return None


def _record(directory: Path, identity: Identity) -> None:
    """In place: the file must keep its inode. Durable."""
    file = open_file(directory / IDENTITY, os.O_RDWR | os.O_CREAT)
    try:
        inode, generation = os.fstat(file).st_ino, _generation(file)
        full = replace(identity, inode=inode, generation=generation, filesystem=_filesystem(directory))
        content = orjson.dumps(asdict(full))
        os.pwrite(file, content, 0)
        os.ftruncate(file, len(content))
        os.fsync(file)
    finally:
        os.close(file)
    sync_path(directory)


def _generation(file: int) -> int:
    """Of the inode, where the file system says it (ext4, xfs, btrfs, f2fs): another one with each use of the number."""
    answer = bytearray(8)
    try:
        fcntl.ioctl(file, _FS_IOC_GETVERSION, answer)
    except OSError:
        return 0
    return int.from_bytes(answer[:4], sys.byteorder)


def _filesystem(directory: Path) -> str:
    """Its type, as the kernel names it; empty where that is not said."""
    best, kind = -1, ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), mount.split(" ")[4])
            if len(point) >= best and directory.is_relative_to(point):
                best, kind = len(point), source.split(" ")[0]
    return kind


@contextmanager
def _explain(pipeline: Pipeline) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"the state directory cannot be used: {error.strerror or error}",
            where=str(pipeline.state_path),
            fix="The user that runs the pipeline must be able to create and write files there; state_dir in the "
            "document chooses another place.",
        ) from error
