"""What goes into one request: an event with its headers, or the rows of a block that fit into one body."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from tidemill.component import Format
from tidemill.errors import Poisoned
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.keyhash import key_hashes
from tidemill.model.template import Template
from tidemill.sinks._http_requests import Request
from tidemill.sinks._inorder import event_ids
from tidemill.sinks._routing import names

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpConfig

_URL = "/:?#[]@!$&'()*+,;=%~-._"  # what may stand in a URL as it is
_SEEN = " !#$&'()*+,;=:/?@[]{}|^`<>~-._"  # of a header value; CloudEvents' HTTP binding asks for "%" and quotes encoded
_KEYLESS = (Op.TRUNCATE, Op.DDL, Op.MESSAGE)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one block for one request. Half a piece has no body yet: `Packer.request` makes it."""

    block: Block
    url: str
    headers: Mapping[str, str]
    identity: str = ""
    body: memoryview | None = None

    def halves(self) -> tuple[Piece, Piece]:
        half = self.block.rows // 2
        first, second = self.block.batch.slice(0, half), self.block.batch.slice(half)
        return (
            Piece(Block(self.block.table, first), self.url, self.headers),
            Piece(Block(self.block.table, second), self.url, self.headers),
        )


class Packer:
    """Turns a group of blocks into work for each of `concurrency` couriers; a key always goes to the same one."""

    def __init__(self, config: HttpConfig, format: Format, delivery: Delivery) -> None:
        self._config = config
        self._format = format
        self._delivery = delivery
        self._url = Template(config.url)
        self._headers = {name: Template(text) for name, text in config.headers.items()}
        self._array = config.mode == "batch" and config.batch_shape == "array"

    def deal(self, group: list[Block]) -> list[list[Piece]]:
        """The pieces of each courier, in the order they are to be sent."""
        count = self._config.concurrency
        if any(np.isin(block.batch.column("op").to_numpy(), _KEYLESS).any() for block in group):
            count = 1  # such an event stands between all others of its table
        pieces = self._events if self._config.mode == "event" else self._batches
        dealt: list[list[tuple[int, Piece]]] = [[] for _ in range(count)]
        for block in group:
            lanes = self._lanes(block, count)
            for lane in np.unique(lanes).tolist():
                mine = block if count == 1 else block.take(np.flatnonzero(lanes == lane))
                for url, headers, part in self._routes(mine):
                    dealt[lane] += [(int(p.block.offsets()[0]), p) for p in pieces(part, url, headers)]
        return [[piece for _, piece in sorted(numbered, key=lambda pair: pair[0])] for numbered in dealt]

    def request(self, piece: Piece) -> Request:
        if piece.body is not None:
            return Request(piece.url, piece.identity or self._identity(piece.block), piece.headers, piece.body)
        return Request(piece.url, self._identity(piece.block), piece.headers, self._body(piece.block))

    def _events(self, block: Block, url: str, headers: Mapping[str, str]) -> Iterator[Piece]:
        source = self._delivery.source
        documents = self._format.encode(block, source)
        ends = np.frombuffer(documents.buffers()[1], np.int64)[documents.offset :].tolist()
        data = memoryview(documents.buffers()[2] or b"")
        ids = event_ids(block, source).to_pylist()
        beside = self._format.attributes(block, source)
        lists = {n: value if isinstance(value, str) else value.to_pylist() for n, value in beside.items()}
        for row in range(block.rows):
            mine = {**headers, "Content-Type": self._format.content_type}
            for name, value in lists.items():
                if text := value if isinstance(value, str) else value[row]:
                    mine["Content-Type" if name == "datacontenttype" else f"ce-{name}"] = _escaped(text)
            one = Block(block.table, block.batch.slice(row, 1))
            yield Piece(one, url, mine, _escaped(ids[row].decode()), data[ends[row] : ends[row + 1]])

    def _batches(self, block: Block, url: str, headers: Mapping[str, str]) -> Iterator[Piece]:
        limit = self._config.max_events
        headers = {**headers, "Content-Type": self._batch_type()}
        if self._format.batch_content_type != "application/x-ndjson" or self._array:
            for at in range(0, block.rows, limit):
                yield Piece(Block(block.table, block.batch.slice(at, limit)), url, headers)
            return
        # Lines can be cut anywhere between two of them: all are written at once, which is much cheaper.
        text = self._format.batch(block, self._delivery.source)
        ends = np.concatenate([[0], np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1])
        at = 0
        while at < block.rows:
            fits = int(np.searchsorted(ends, ends[at] + self._config.max_bytes, side="right")) - 1
            end = min(max(fits, at + 1), at + limit)
            part = Block(block.table, block.batch.slice(at, end - at))
            yield Piece(part, url, headers, body=memoryview(text)[ends[at] : ends[end]])
            at = end

    def _routes(self, block: Block) -> Iterator[tuple[str, Mapping[str, str], Block]]:
        """Runs of rows that share a URL and headers."""
        source = self._delivery.source
        templates = [self._url, *self._headers.values()]
        named = [names(template, block, source) for template in templates]
        texts = [d.dictionary.to_pylist() for d in named]
        codes = np.stack([d.indices.to_numpy() for d in named])
        changes = np.flatnonzero((np.diff(codes) != 0).any(axis=0)) + 1
        bounds = [0, *changes.tolist(), block.rows]
        for low, high in itertools.pairwise(bounds):
            url, *values = (texts[i][codes[i, low]] for i in range(len(templates)))
            part = block if high - low == block.rows else Block(block.table, block.batch.slice(low, high - low))
            if ".." in url.split("/") and ".." not in self._url.text.split("/"):
                raise Poisoned(dict.fromkeys(part.offsets().tolist(), "its url would leave the path"))
            headers = {name: _escaped(v) for name, v in zip(self._headers, values, strict=True)}
            yield quote(url, safe=_URL), headers, part

    def _lanes(self, block: Block, count: int) -> np.ndarray:
        if count == 1:
            return np.zeros(block.rows, np.int64)
        table = zlib.crc32(block.table.full_name.encode())
        hashes = key_hashes(block, block.table.key)
        if hashes is None:
            return np.full(block.rows, table % count)
        return (hashes + np.uint64(table)) % np.uint64(count)

    def _body(self, block: Block) -> bytes | memoryview:
        source = self._delivery.source
        if not self._array:
            return memoryview(self._format.batch(block, source))
        return b"[" + b",".join(self._format.encode(block, source).to_pylist()) + b"]"

    def _batch_type(self) -> str:
        if not self._array:
            return self._format.batch_content_type
        return "application/cloudevents-batch+json" if self._config.envelope == "cloudevents" else "application/json"

    def _identity(self, block: Block) -> str:
        """Names exactly these events: with another cut of the batch the same key must not stand for others."""
        offsets = block.offsets()
        digest = hashlib.sha256(offsets.tobytes() + block.table.full_name.encode()).hexdigest()[:16]
        pipeline = _escaped(f"{self._delivery.pipeline}:{self._config.id}")
        return f"{pipeline}:{int(offsets[0])}-{int(offsets[-1])}:{digest}"


def _escaped(text: str) -> str:
    return quote(text, safe=_SEEN)
