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
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import DeliveryError, Poisoned, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.net.tls import TrustConfig
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder, no_headers
from tidemill.sinks._shared.in_order import event_ids
from tidemill.sinks._shared.places import bucket
from tidemill.sinks._shared.routing import names, parsed
from tidemill.sinks.s3.errors import explained
from tidemill.sinks.s3.resume import Manifests, Reached
from tidemill.sinks.s3.write import Objects

_COMPRESS_INSIDE = ("avro", "arrow", "parquet")
_HELD = 128 << 20  # bytes of unfinished objects in memory before all are finished and new ones begun
_LONGEST = 900  # of S3's 1024 bytes for a key; the rest is for the object's own name


class S3Config(EncodedSinkConfig):
    bucket: str = Field(min_length=3, description="The bucket; it must exist.")
    prefix: str = Field(default="", description="Where in the bucket; belongs to this sink alone.")
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
    region: str = Field(default="us-east-1", description="The bucket's region.")
    endpoint: str | None = Field(
        default=None, pattern=r"^https?://", description="Address of a store other than AWS: https://minio:9000."
    )
    path_style: bool | None = Field(
        default=None, description="Whether the bucket stands in the path, not in the host; by default with an endpoint."
    )
    access_key_id: str | None = Field(default=None, description="Key id; from the environment if left out.")
    secret_access_key: SecretStr | None = Field(default=None, description="The key's secret.")
    session_token: SecretStr | None = Field(default=None, description="Token of temporary credentials.")
    tls: TrustConfig = Field(default=TrustConfig(), description="Certificates, for https.")
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long connecting may take.")
    timeout_seconds: float = Field(default=60.0, gt=0, description="How long one request may take.")

    @field_validator("path")
    @classmethod
    def _path_parses(cls, text: str) -> str:
        return parsed(_folders(text))

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_name(cls, text: str) -> str:
        return _folders(text)

    @model_validator(mode="after")
    def _can_be_an_object(self) -> S3Config:
        if self.format == "arrow" and self.compression == "gzip":
            raise ValueError("Arrow has no gzip. Use zstd.")
        if self.schema_registry is not None:
            raise ValueError("schema_registry is for single events; an object has its schema inside. Remove it.")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together. Give both or none.")
        return no_headers(self)

    def occupies(self) -> tuple[Place, ...]:
        return (bucket(self.bucket, self.prefix, self.endpoint or ""),)

    @property
    def outer_compression(self) -> str | None:
        """What compresses the whole object, from outside."""
        return None if self.format in _COMPRESS_INSIDE or self.compression == "none" else self.compression

    @property
    def root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def where(self) -> str:
        return f'sink "{self.id}", s3://{self.bucket}/{self.prefix}'

    @staticmethod
    def escape(text: str) -> str:
        """A value as one folder's name: what it cannot hold, or a reader would skip, is percent-encoded."""
        safe = re.sub(r"[\x00-\x1f\x7f%/\\:*?\"<>|#]", lambda m: f"%{ord(m.group()):02X}", text)
        return f"%{ord(safe[0]):02X}{safe[1:]}" if safe[:1] in (".", "_") else safe

    def store(self) -> Any:
        from obstore.store import S3Store

        plain = (self.endpoint or "").startswith("http://")
        path_style = self.path_style if self.path_style is not None else self.endpoint is not None
        options: dict[str, Any] = {"region": self.region, "virtual_hosted_style_request": not path_style}
        if self.endpoint is not None:
            options["endpoint"] = self.endpoint
        if self.access_key_id is not None and self.secret_access_key is not None:
            options["access_key_id"] = self.access_key_id
            options["secret_access_key"] = self.secret_access_key.get_secret_value()
        if self.session_token is not None:
            options["token"] = self.session_token.get_secret_value()
        client: dict[str, Any] = {
            "allow_http": plain,
            "timeout": f"{self.timeout_seconds}s",
            "connect_timeout": f"{self.connect_timeout_seconds}s",
            "allow_invalid_certificates": not self.tls.verify,
        }
        if self.tls.ca_file is not None:
            client["root_certificate"] = _certificates(self.tls.ca_file)
        # The stream tries again by its own policy; a few quick tries here save it from a passing 503.
        retries = {"max_retries": 3}
        return S3Store(self.bucket, client_options=client, retry_config=retries, **options)


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
            with explained(self.config.where):
                return self._write(delivery)
        except Poisoned:
            raise
        except Refused as error:
            raise Refused(error.what, where=error.where or self.config.where, fix=error.fix) from error
        except pa.ArrowException as error:  # its own words may quote a value
            raise DeliveryError(
                f"the batch's objects could not be made: {type(error).__name__}", where=self.config.where
            ) from error

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
        self.events = self.bytes = self.skipped = 0
        self.encode_seconds = 0.0
        self._config = sink.config
        self._path = sink._path
        self._delivery = delivery
        self._manifests = manifests
        dead_letter = delivery.redelivered
        self._reached = Reached(delivery.start) if dead_letter else manifests.reached(delivery)
        self._start = max(delivery.start, self._reached.end)
        kind = "letter-" if dead_letter else ""
        token = f"{kind}{self._start:020}-{max(delivery.end, self._start):020}"
        self._objects = Objects(store, sink.config, sink._format, delivery.source, token)
        self._witness: dict[Offset, str] = {}
        self._confirmed = False
        self._names: list[str] = []

    def run(self) -> None:
        for block in self._delivery:
            fresh = self._fresh(block)
            if fresh is None:
                continue
            self._note(fresh)
            began = time.perf_counter()
            for folder, part in self._folders(fresh):
                self._objects.write(folder, part)
            self.encode_seconds += time.perf_counter() - began
            self.events += fresh.rows
            if self._objects.held > _HELD:
                self._finish()
        if self.skipped and not self._confirmed and not self._reached.continued:
            raise self._other_log(self._delivery.start)
        if not self.events:
            if self.skipped:  # the next delivery is known by where this one ended
                self._manifests.attempt(self._reached, self._delivery, self._reached.end, [])
            return
        self._finish()
        files = sorted(self._objects.files, key=lambda file: str(file["path"]))
        self.bytes = sum(int(file["bytes"]) for file in files)
        document = {
            "start": self._start, "end": self._delivery.end, "rows": self.events, "files": files,
            "witness": {str(o): text for o, text in sorted(self._witness.items())},
            "format": self._config.format, "source": self._delivery.source,
        }  # fmt: skip
        if self._delivery.redelivered:
            self._manifests.add(self._start, document)
        else:
            self._manifests.publish(self._reached, document)

    def _finish(self) -> None:
        self._names += self._objects.names
        if not self._delivery.redelivered:
            self._manifests.attempt(self._reached, self._delivery, self._start, self._names)
        self._objects.finish()

    def _fresh(self, block: Block) -> Block | None:
        """The rows that no manifest covers. What one covers must be the events it names."""
        if not block.rows:
            return None
        fresh = block.slice(self._start, 2**63)
        if fresh.rows < block.rows:
            old = Block(block.table, block.batch.slice(0, block.rows - fresh.rows))
            self.skipped += old.rows
            offsets = old.offsets().tolist()
            for offset in self._reached.witness.keys() & set(offsets):
                if _identity(old, offsets.index(offset), self._delivery.source) != self._reached.witness[offset]:
                    raise self._other_log(offset)
                self._confirmed = True
        return fresh if fresh.rows else None

    def _note(self, block: Block) -> None:
        """The first and last event of each table's run, at most a few: what a replay is recognised by."""
        offsets = block.offsets()
        for row in (0, block.rows - 1):
            if len(self._witness) < 256 or row:
                self._witness[int(offsets[row])] = _identity(block, row, self._delivery.source)
        if len(self._witness) > 512:
            kept = sorted(self._witness)
            self._witness = {o: self._witness[o] for o in (*kept[:128], *kept[128:-1:4], kept[-1])}

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

    def _other_log(self, offset: Offset) -> Refused:
        return Refused(
            f"manifests reach offset {self._reached.end}, but do not show that they hold the events from {offset} on",
            where=self._config.where,
            fix="If the state directory was lost or reset, offsets count anew and the old objects stay valid: give the "
            "sink a new prefix.",
        )


def _folders(text: str) -> str:
    """A prefix or a path as its folders with one slash between them."""
    parts = [part for part in text.split("/") if part]
    if wrong := next((part for part in parts if part in (".", "..") or re.search(r"[\x00-\x1f\x7f]", part)), None):
        raise ValueError(f"{wrong!r} cannot be a folder's name")
    return "/".join(parts)


def _unusable(folder: str, root: int) -> str:
    """Why no object can be in it; empty if one can."""
    if len(folder.encode()) + root > _LONGEST:
        return "its folder's name is longer than S3 allows"
    if any(part in (".", "..") for part in folder.split("/")):  # of the template's own dots around an empty value
        return "its folder's name is . or .."
    return ""


def _certificates(file: Path) -> str:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or type(error).__name__
        raise Refused(f"the file of certificates cannot be read: {what}", fix="Check tls.ca_file.") from error
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise Refused("the file of certificates has none", fix="tls.ca_file must be PEM.")
    return text


def _identity(block: Block, row: int, source: str) -> str:
    one = Block(block.table, block.batch.slice(row, 1))
    return str(event_ids(one, source)[0].as_py().decode())


component = S3Sink
