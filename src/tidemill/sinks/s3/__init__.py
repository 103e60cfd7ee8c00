"""S3 and what speaks its protocol: objects of events in any wire format, in folders that a template names.

    <prefix>/<path>/<start>-<end>-<number>.jsonl           data
    <prefix>/_tidemill/manifests/<start>.json               which data counts

All objects of a batch are made first; then its manifest appears, and with it the batch (`resume`). A replay
makes the same objects under the same names, or finds the manifest and makes none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import DeliveryError, Poisoned, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.net.s3 import S3Connection, explain_errors, split_folders
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder, no_headers
from tidemill.sinks._shared.places import bucket
from tidemill.sinks._shared.replayed import ReplayedAudit
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks._shared.routing import check_template, names
from tidemill.sinks.s3.contents import ObjectEvents
from tidemill.sinks.s3.resume import Manifests, S3Resumption
from tidemill.sinks.s3.write import Objects

_COMPRESS_INSIDE = ("avro", "arrow", "parquet")
_HELD = 128 << 20  # bytes of unfinished objects in memory before all are finished and new ones begun
_LONGEST = 900  # of S3's 1024 bytes for a key; the rest is for the object's own name


class S3Config(S3Connection, EncodedSinkConfig):
    path: str = Field(
        default="${source.schema}/${source.table}",
        description="Folder below the prefix, a template: ${source.schema}/${source.table}/dt=${commit.date}. None if "
        "it is empty.",
    )
    compression: Literal["none", "gzip", "zstd"] = Field(
        default="none",
        description="Of the whole object for JSON and Protobuf (.gz, .zst); inside it for Avro, Parquet and Arrow, "
        "which has no gzip.",
    )
    max_rows: int = Field(default=1_000_000, ge=1, description="Events in an object; then another is begun.")
    max_bytes: int = Field(
        default=128 << 20, ge=1024, description="Size from which on another object is begun; checked every 16384 rows."
    )
    max_seconds: int | None = Field(
        default=None, ge=1, description="An object holds commits of one interval of so many seconds; any if left out."
    )

    @field_validator("path")
    @classmethod
    def _path_parses(cls, text: str) -> str:
        return check_template(split_folders(text))

    @model_validator(mode="after")
    def _can_be_an_object(self) -> S3Config:
        if self.format == "arrow" and self.compression == "gzip":
            raise ValueError("Arrow has no gzip. Use zstd.")
        if self.schema_registry is not None:
            raise ValueError("schema_registry is for single events; an object has its schema inside. Remove it.")
        return no_headers(self)

    def occupies(self) -> tuple[Place, ...]:
        return (bucket(self.bucket, self.prefix, self.endpoint or ""),)

    @property
    def outer_compression(self) -> str | None:
        """What compresses the whole object, from outside."""
        return None if self.format in _COMPRESS_INSIDE or self.compression == "none" else self.compression

    @property
    def where(self) -> str:
        return f'sink "{self.id}", s3://{self.bucket}/{self.prefix}'

    @staticmethod
    def escape(text: str) -> str:
        """A value as one folder's name: what it cannot hold, or a reader would skip, is percent-encoded."""
        safe = re.sub(r"[\x00-\x1f\x7f%/\\:*?\"<>|#]", lambda m: f"%{ord(m.group()):02X}", text)
        return f"%{ord(safe[0]):02X}{safe[1:]}" if safe[:1] in (".", "_") else safe


class S3Sink(BaseSink[S3Config]):
    Config: ClassVar[type[SinkConfig]] = S3Config
    mechanism: ClassVar[str] = (
        "A batch is visible by its manifest, which is written last, under a name made of the offset it starts at, and "
        "only if there is none; a replay goes on where the last manifest ends."
    )
    capabilities = Capabilities(single_lane=True, formats=EVERY_FORMAT)
    tier: ClassVar[Tier] = Tier.EFFECTIVELY_ONCE
    config: S3Config

    def __init__(self, config: S3Config) -> None:
        super().__init__(config)
        self._path = Template(config.path)
        self._format = encoder(config)
        self._store: Any = None
        self._manifests: Manifests | None = None

    def write(self, delivery: Delivery) -> Receipt:
        try:
            with explain_errors(self.config.where):
                return self._write(delivery)
        except Poisoned:
            raise
        except Refused as error:
            raise Refused(error.what, where=error.where or self.config.where, fix=error.fix) from error
        except pa.ArrowException as error:  # its own words may quote a value
            raise DeliveryError(
                f"the batch's objects could not be made: {type(error).__name__}", where=self.config.where
            ) from error

    def audit(self, table: Table, source: str, *, values: bool = False) -> ReplayedAudit:
        config, folder = self.config, None
        if self._path.is_constant:
            folder = re.sub("/+", "/", self._path.constant(table, source, config.escape)).strip("/")
        events = ObjectEvents(config.store(), config.root, folder, config.where)
        return ReplayedAudit(config, self._format, events, table, source, values=values)

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.s3.checks import run_checks

        return run_checks(self.config)

    def close(self) -> None:
        self._store = self._manifests = None

    def _write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        if self._store is None or self._manifests is None:
            self._store = self.config.store()
            owner = {"pipeline": delivery.pipeline, "sink": self.config.id}
            self._manifests = Manifests(self._store, self.config.root, self.config.where, owner)
        making = _Making(self, delivery, self._store, self._manifests)
        making.run()
        seconds = time.perf_counter() - began - making.encode_seconds
        return Receipt(
            self.config.id, delivery.lane, making.events, making.bytes, making.skipped,
            encode_seconds=making.encode_seconds, write_seconds=seconds,
        )  # fmt: skip


class _Making:
    """One delivery on its way into objects."""

    def __init__(self, sink: S3Sink, delivery: Delivery, store: Any, manifests: Manifests) -> None:
        self.events = self.bytes = 0
        self.encode_seconds = 0.0
        self._config = sink.config
        self._path = sink._path
        self._delivery = delivery
        self._resumption = S3Resumption(manifests, delivery, sink.config.where)
        self._objects = Objects(store, sink.config, sink._format, delivery.source, self._resumption.token)
        self._names: list[str] = []

    @property
    def skipped(self) -> int:
        return self._resumption.skipped

    def run(self) -> None:
        for block in fresh_units(self._delivery, self._resumption):
            began = time.perf_counter()
            for folder, part in self._folders(block):
                self._objects.write(folder, part)
            self.encode_seconds += time.perf_counter() - began
            self.events += block.rows
            if self._objects.held > _HELD:
                self._finish()
        self._resumption.check_log()
        if self.events:
            self._finish()
        files = sorted(self._objects.files, key=lambda file: str(file["path"]))
        self.bytes = sum(int(file["bytes"]) for file in files)
        self._resumption.content = {
            "rows": self.events, "files": files, "format": self._config.format, "source": self._delivery.source
        }  # fmt: skip
        self._resumption.note()

    def _finish(self) -> None:
        self._names += self._objects.names
        self._resumption.announce(self._names)
        self._objects.finish()

    def _folders(self, block: Block) -> Iterator[tuple[str, Block]]:
        named = names(self._path, block, self._delivery.source, self._config.escape)
        # An empty value is no folder, and neither are two slashes.
        folders = [re.sub("/+", "/", text).strip("/") for text in named.dictionary.to_pylist()]
        numbers = named.indices.to_numpy()
        self._check(folders, numbers, block)
        if len(folders) == 1:
            yield folders[0], block
            return
        for number, folder in enumerate(folders):
            if len(rows := np.flatnonzero(numbers == number)):
                yield folder, block.take(rows)

    def _check(self, folders: list[str], numbers: np.ndarray, block: Block) -> None:
        root = len(self._config.root)
        bad = {n: reason for n, folder in enumerate(folders) if (reason := _unusable(folder, root))}
        if bad:
            rows = np.flatnonzero(np.isin(numbers, list(bad))).tolist()
            offsets = block.offsets()
            raise Poisoned({int(offsets[row]): bad[int(numbers[row])] for row in rows}, where=self._config.where)


def _unusable(folder: str, root: int) -> str:
    """Why no object can be in it; empty if one can."""
    if len(folder.encode()) + root > _LONGEST:
        return "its folder's name is longer than S3 allows"
    if any(part in (".", "..") for part in folder.split("/")):  # of the template's own dots around an empty value
        return "its folder's name is . or .."
    return ""


component = S3Sink
