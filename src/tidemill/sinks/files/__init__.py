"""Files of events in any wire format, in a directory or any `pyarrow.fs` URI.

    <path>/<schema>.<table>/<start>-<end>-<lane>of<lanes>.jsonl

One file per table, batch and lane, named by the batch's offsets (invariant 5) and published by a rename: a reader sees
a file wholly or not at all, and a replay writes the same bytes under the same name. `resume` says how a
batch that comes again with another plan leaves nothing of the first attempt behind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Format, Outcome, Place, SinkConfig
from tidemill.errors import DeliveryError, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.table import Table
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder, no_headers
from tidemill.sinks._shared.lines import Encoding, FileWriter
from tidemill.sinks._shared.places import folder
from tidemill.sinks._shared.replayed import ReplayedAudit
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks.files.batch_notes import LaneShare
from tidemill.sinks.files.client import FileStore
from tidemill.sinks.files.contents import FileEvents
from tidemill.sinks.files.resume import FilesResumption, Journal

_COMPRESS_INSIDE = ("avro", "arrow", "parquet")


class FilesConfig(EncodedSinkConfig):
    path: str = Field(
        min_length=1, description="A directory, or a URI (s3://bucket/prefix, hdfs://...). Belongs to this sink alone."
    )
    compression: Literal["none", "gzip", "zstd"] = Field(
        default="none",
        description="Of the whole file for JSON and Protobuf (.gz, .zst); inside it for Avro, Parquet and Arrow, "
        "which has no gzip.",
    )
    rewind: Literal["refuse", "replace"] = Field(
        default="refuse",
        description="When events come again that finished files have, because the checkpoint was moved back: stop, or "
        "replace these files.",
    )

    @model_validator(mode="after")
    def _can_be_a_file(self) -> FilesConfig:
        if self.format == "arrow" and self.compression == "gzip":
            raise ValueError("Arrow has no gzip. Use zstd.")
        if self.schema_registry is not None:
            raise ValueError("schema_registry is for single events; a file has its schema inside. Remove it.")
        return no_headers(self)

    def occupies(self) -> tuple[Place, ...]:
        return (folder(self.path),)

    @property
    def outer_compression(self) -> str | None:
        """What compresses the whole file, from outside."""
        return None if self.format in _COMPRESS_INSIDE or self.compression == "none" else self.compression


class FilesSink(BaseSink[FilesConfig]):
    Config: ClassVar[type[SinkConfig]] = FilesConfig
    mechanism: ClassVar[str] = (
        "File names come from the batch's offsets and are published by a rename; a replay writes the same files."
    )
    capabilities = Capabilities(formats=EVERY_FORMAT)
    config: FilesConfig
    tier: ClassVar[Tier] = Tier.EFFECTIVELY_ONCE

    def __init__(self, config: FilesConfig) -> None:
        super().__init__(config)
        self._format = encoder(config)
        self._journal: Journal | None = None
        self._store: FileStore | None = None

    def write(self, delivery: Delivery) -> Receipt:
        try:
            return self._write(delivery)
        except Refused as error:
            raise Refused(error.what, where=error.where or self._where(), fix=error.fix) from error
        except (OSError, pa.ArrowException) as error:
            # Never the exception's own words for Arrow's: they may quote a value.
            what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise DeliveryError(
                f"cannot write the batch's files: {what}", where=self._where(),
                fix="Check the space, the permissions and the reachability of the path; the batch is tried again.",
            ) from error  # fmt: skip

    def audit(self, table: Table, source: str, *, values: bool = False) -> ReplayedAudit:
        events = FileEvents(self._open()[0], folder_name(table), self._where())
        return ReplayedAudit(self.config, self._format, events, table, source, values=values)

    def doctor(self) -> Iterable[Check]:
        try:
            problem = FileStore.at(self.config.path).probe()
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = str(error)
        if problem:
            fix = "Set path to a directory that can be written, or to a URI whose credentials are in the environment."
            yield Check("path", Outcome.FAIL, f"{self.config.path}: {problem}", fix)
        else:
            yield Check("path", Outcome.PASS, self.config.path)

    def close(self) -> None:
        self._journal = self._store = None

    def _write(self, delivery: Delivery) -> Receipt:
        store, journal = self._open()
        resumption = FilesResumption(journal, delivery, self.config.id)
        encoding = Encoding(delivery, self._format)
        drafts = _Drafts(self.config, store, journal, delivery, encoding)
        with drafts:
            for block in fresh_units(delivery, resumption):
                drafts.write(block)
            drafts.close()
            resumption.files = list(drafts.names)
            resumption.note()
        for name, draft in drafts.names.items():
            store.publish(draft, name)
        return encoding.receipt(self.config.id)

    def _open(self) -> tuple[FileStore, Journal]:
        if self._store is None or self._journal is None:
            self._store = FileStore.at(self.config.path)
            self._journal = Journal(self._store, self.config.rewind)
        return self._store, self._journal

    def _where(self) -> str:
        return f'sink "{self.config.id}", {self.config.path}'


class _Drafts:
    """The files of one delivery while they are written; `names` says which draft becomes which file."""

    def __init__(
        self, config: FilesConfig, store: FileStore, journal: Journal, delivery: Delivery, encoding: Encoding
    ) -> None:
        self.names: dict[str, str] = {}
        self._config = config
        self._store = store
        self._journal = journal
        self._delivery = delivery
        self._encoding = encoding
        self._writers: dict[str, FileWriter] = {}

    def write(self, block: Block) -> None:
        name = file_name(block.table, LaneShare.of(self._delivery), self._config, self._encoding.format)
        if name not in self._writers:
            self.names[name] = self._journal.draft(self._delivery, len(self.names))
            self._writers[name] = self._open(self.names[name], block.table)
        self._writers[name].write(block)

    def _open(self, draft: str, table: Table) -> FileWriter:
        stream = self._store.create(draft, self._config.outer_compression)
        batches = self._encoding.format.open(stream, table, self._delivery.source, self._config.compression)
        return FileWriter(stream, batches, self._encoding)

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def __enter__(self) -> _Drafts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not kind:
            return
        for writer in self._writers.values():
            # After a failure the drafts are worthless, and closing them may fail the same way again.
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
        for draft in self.names.values():
            with contextlib.suppress(OSError, pa.ArrowException):  # else the next attempt's `begin` removes it
                self._store.remove(draft)


def file_name(table: Table, share: LaneShare, config: FilesConfig, format: Format) -> str:
    """A file with a schema inside has the table's version in its name; JSON lines of several may share a file."""
    version = f"-v{table.version}" if format.schema_in_file else ""
    packed = {"gzip": ".gz", "zstd": ".zst"}.get(config.outer_compression or "", "")
    return f"{folder_name(table)}/{share}{version}{format.suffix}{packed}"


def folder_name(table: Table) -> str:
    """The table's full name; what a path cannot hold, or a reader would skip, is percent-encoded."""
    name = re.sub(r"[\x00-\x1f\x7f%/\\:*?\"<>|]", lambda m: f"%{ord(m.group()):02X}", table.full_name)
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


component = FilesSink
