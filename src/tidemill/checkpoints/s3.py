"""Checkpoints in a bucket, one object per pipeline, for workers that share neither a disk nor a database.

S3 compares and sets by itself: an object is written only if there is none (If-None-Match), or if it is still the one
that was read (If-Match). The object holds the newest checkpoint and a few before it. A store that ignores conditions
is refused at the first save.
"""

from __future__ import annotations

import re
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component
from tidemill.errors import CheckpointConflict, CheckpointError, ConfigError, DeliveryError
from tidemill.model.delivery import Checkpoint
from tidemill.net.s3 import S3Connection, explain_errors

_NO_CONTENT = {"e_tag": '"00000000000000000000000000000000"'}  # what no object is called


class S3CheckpointsConfig(S3Connection):
    prefix: str = Field(default="tidemill/checkpoints", description="Where in the bucket the objects are.")
    keep: int = Field(default=20, ge=1, le=1000, description="How many past checkpoints of a pipeline to keep.")


@dataclass(frozen=True, slots=True)
class _Version:
    """An object as it was read: newest first, and what S3 calls this content of it. None for one that is not there."""

    checkpoints: tuple[Checkpoint, ...] = ()
    condition: dict[str, Any] | None = None

    @property
    def newest(self) -> Checkpoint | None:
        return self.checkpoints[0] if self.checkpoints else None


class S3Checkpoints(Component[S3CheckpointsConfig]):
    Config = S3CheckpointsConfig

    def __init__(self, config: S3CheckpointsConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self._where = f"s3://{config.bucket}/{config.prefix}"
        self._lock = threading.Lock()
        self._store: Any = None
        self._checked = False
        self._known: dict[str, _Version] = {}  # as this process left them: a save is one request

    def load(self, pipeline: str) -> Checkpoint | None:
        return self._fetch(pipeline).newest

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        """Returns when S3 has it."""
        own = replace(checkpoint, writer=checkpoint.writer or uuid.uuid4().hex)  # known again if an answer is lost
        with self._lock:
            known = self._known.pop(pipeline, None)
        if known is not None and known.newest is not None and known.newest.version == expect:
            with suppress(CheckpointConflict):  # somebody else was there: look again before it is one
                return self._save(pipeline, known, own, expect=expect, force=force)
        return self._save(pipeline, self._fetch(pipeline), own, expect=expect, force=force)

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        return list(self._fetch(pipeline).checkpoints[:limit])

    def close(self) -> None:
        with self._lock:
            self._store = None
            self._known.clear()

    def _save(
        self, pipeline: str, current: _Version, checkpoint: Checkpoint, *, expect: int, force: bool
    ) -> Checkpoint:
        stored = succeed(current.newest, checkpoint, expect=expect, force=force, pipeline=pipeline)
        if stored is current.newest:
            return stored
        kept = (stored, *current.checkpoints)[: self.config.keep]
        condition = self._put(pipeline, kept, current.condition)
        if condition is None:
            # Refused. A repeated request whose first answer was lost is refused too, by its own object.
            newest = self._fetch(pipeline).newest
            if newest is not None and newest.answers(checkpoint, expect):
                return newest
            raise CheckpointConflict(
                f"another process saved version {stored.version} of the checkpoint", where=f'pipeline "{pipeline}"',
                fix="Make sure that one process runs this pipeline, then start again.",
            )  # fmt: skip
        with self._lock:
            self._known[pipeline] = _Version(kept, condition)
        return stored

    def _fetch(self, pipeline: str) -> _Version:
        import obstore

        name = self._name(pipeline)
        try:
            with explain_errors(self._where):
                try:
                    found = obstore.get(self._open(), name)
                    content, meta = bytes(found.bytes()), found.meta
                except FileNotFoundError:
                    return _Version()
            saved = tuple(Checkpoint(**each) for each in orjson.loads(content)["checkpoints"])
        except DeliveryError as error:
            raise self._unreachable(error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"the object does not hold checkpoints: {type(error).__name__}", where=f"{self._where}, {name}",
                fix="Restore an earlier version of it, or remove it and set the position with "
                '"tidemill checkpoints set".',
            ) from error  # fmt: skip
        return _Version(saved, _condition(meta))

    def _put(
        self, pipeline: str, kept: tuple[Checkpoint, ...], condition: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """What S3 calls the new content; None if the condition does not hold."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        self._check_conditions()
        content = orjson.dumps({"checkpoints": [asdict(each) for each in kept]}, option=orjson.OPT_INDENT_2)
        try:
            with explain_errors(self._where):
                try:
                    done = obstore.put(
                        self._open(), self._name(pipeline), content, mode=condition or "create",
                        attributes={"Content-Type": "application/json"}, use_multipart=False,
                    )  # fmt: skip
                except (AlreadyExistsError, PreconditionError):
                    return None
                except FileNotFoundError:  # it was read a moment ago, and removed since
                    return None
        except DeliveryError as error:
            raise self._unreachable(error) from error
        return _condition(done)

    def _check_conditions(self) -> None:
        """Once, before the first save: a store that takes everything would let two processes save one version."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._checked:
            return
        name = f"{self.config.root}_conditions-{uuid.uuid4().hex}"
        kept = 0
        try:
            with explain_errors(self._where):
                obstore.put(self._open(), name, b"{}", mode="create", use_multipart=False)
                for condition in ("create", _NO_CONTENT):
                    try:
                        obstore.put(self._open(), name, b"{}", mode=condition, use_multipart=False)
                    except (AlreadyExistsError, PreconditionError):
                        kept += 1
                obstore.delete(self._open(), name)
        except DeliveryError as error:
            raise self._unreachable(error) from error
        if kept < 2:
            raise ConfigError(
                "the store ignores conditions of writes (If-None-Match, If-Match)", where=self._where,
                fix="Use a store that has them, or another checkpoint store: two processes could both save a position.",
            )  # fmt: skip
        self._checked = True

    def _open(self) -> Any:
        with self._lock:
            if self._store is None:
                self._store = self.config.store()
            return self._store

    def _name(self, pipeline: str) -> str:
        """A pipeline may be called "a/b" or "..", and a sink's own position "a:b": each is one name."""
        plain = re.sub(r"[^A-Za-z0-9_-]", lambda m: "".join(f"={byte:02X}" for byte in m[0].encode()), pipeline)
        return f"{self.config.root}{plain}.json"

    def _unreachable(self, error: DeliveryError) -> CheckpointError:
        return CheckpointError(f"the checkpoints in S3 cannot be used: {error.what}", where=self._where, fix=error.fix)


def _condition(found: Any) -> dict[str, Any]:
    """Of an object's metadata, or of the answer to a write."""
    return {name: found[name] for name in ("e_tag", "version") if found.get(name)}


component = S3Checkpoints
