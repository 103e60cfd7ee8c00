"""What goes into one request: an event with its headers, or the rows of a block that fit into one body."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidemill.contracts import Format
from tidemill.errors import Poisoned
from tidemill.model import cloudevents
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.derived import sub_ordinals
from tidemill.model.keyhash import changes_a_key, key_hashes
from tidemill.model.template import Template
from tidemill.sinks._shared.in_order import event_ids
from tidemill.sinks._shared.routing import names, routed_headers
from tidemill.sinks.http.client import IN_URL, HttpAddress, Request

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpConfig

_SEEN = " !#$&'()*+,;=:/?@[]{}|^`<>~-._"  # of a header value as it is
_KEYLESS = (Op.TRUNCATE, Op.DDL, Op.MESSAGE)


@dataclass(frozen=True, slots=True)
class RequestPiece:
    """Rows of one block for one request. Half a piece has no body yet: `Packer.request` makes it."""

    whole: Block
    numbers: np.ndarray[Any, np.dtype[np.uint64]]  # the offsets of all its rows
    low: int
    high: int
    address: HttpAddress
    identity: str = ""
    body: bytes | memoryview | None = None

    @property
    def rows(self) -> int:
        return self.high - self.low

    @property
    def block(self) -> Block:
        return Block(self.whole.table, self.whole.batch.slice(self.low, self.rows))

    def offsets(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self.numbers[self.low : self.high]

    def halves(self) -> tuple[RequestPiece, RequestPiece]:
        middle = self.low + self.rows // 2
        return (
            RequestPiece(self.whole, self.numbers, self.low, middle, self.address),
            RequestPiece(self.whole, self.numbers, middle, self.high, self.address),
        )


class Packer:
    """Turns a group of blocks into work for each of `concurrency` couriers; a key always goes to the same one.

    A block is sorted by courier and encoded once; a request's body is a stretch of that. Only files with a head of
    their own (Avro, Arrow, Parquet) are encoded request by request.
    """

    def __init__(self, config: HttpConfig, format: Format, delivery: Delivery) -> None:
        self._config = config
        self._format = format
        self._delivery = delivery
        self._url = Template(config.url)
        self._headers = {name: Template(text) for name, text in config.headers.items()}
        self._array = config.mode == "batch" and config.batch_shape == "array"
        self._name = _escape(f"{delivery.pipeline}:{config.id}")

    def deal(self, group: list[Block]) -> list[list[RequestPiece]]:
        """The pieces of each courier, in the order they are to be sent; of one only, if keys do not tell the order."""
        count = self._config.concurrency
        if count > 1 and any(_stands_between(block) for block in group):
            count = 1
        pieces = self._events if self._config.mode == "event" else self._batches
        dealt: list[list[RequestPiece]] = [[] for _ in range(count)]
        for block in group:
            whole, ends = self._by_courier(block, count)
            runs = list(self._runs(whole, ends))
            courier = 0
            for piece in pieces(whole, runs):
                while piece.low >= ends[courier]:
                    courier += 1
                dealt[courier].append(piece)
        if len(group) > 1:
            for mine in dealt:
                mine.sort(key=lambda piece: int(piece.offsets()[0]))
        return dealt

    def request(self, piece: RequestPiece) -> Request:
        body = self._body(piece.block) if piece.body is None else piece.body
        return Request(piece.address, piece.identity or self._identity(piece), body)

    def _by_courier(self, block: Block, count: int) -> tuple[Block, list[int]]:
        """The rows of one courier after those of the other, each in their order, and where each one's end."""
        if count == 1:
            return block, [block.rows]
        table = zlib.crc32(block.table.full_name.encode())
        hashes = key_hashes(block, block.table.key)
        if hashes is None:
            mine = table % count
            return block, [0] * mine + [block.rows] * (count - mine)
        couriers = ((hashes + np.uint64(table)) % np.uint64(count)).astype(np.uint8)  # at most 256 of them
        order = np.argsort(couriers, kind="stable")
        return block.take(order), np.cumsum(np.bincount(couriers, minlength=count)).tolist()

    def _runs(self, block: Block, ends: list[int]) -> Iterator[_Run]:
        """Rows of one courier that share a URL and headers."""
        source = self._delivery.source
        named = [names(self._url, block, source, _in_url), *(names(t, block, source) for t in self._headers.values())]
        strings = [d.dictionary.to_pylist() for d in named]
        codes = np.stack([d.indices.to_numpy() for d in named])
        changes = np.flatnonzero((np.diff(codes) != 0).any(axis=0)) + 1
        bounds = sorted({0, *changes.tolist(), *ends})
        for low, high in itertools.pairwise(bounds):
            url, *values = (text[code] for text, code in zip(strings, codes[:, low], strict=True))
            if _climbs(url) and not _climbs(self._url.text):
                raise Poisoned(dict.fromkeys(block.offsets()[low:high].tolist(), "its url would leave the path"))
            headers = {name: _escape(v) for name, v in zip(self._headers, values, strict=True)}
            yield _Run(low, high, quote(url, safe=IN_URL), headers)

    def _events(self, block: Block, runs: list[_Run]) -> Iterator[RequestPiece]:
        source, numbers = self._delivery.source, block.offsets()
        ends, data = _stretches(self._format.encode(block, source))
        bounds = ends.tolist()
        ids = event_ids(block, source).to_pylist()
        beside = self._format.attributes(block, source)
        lists = {n: value if isinstance(value, str) else value.to_pylist() for n, value in beside.items()}
        given = {_header_name(n): values.to_pylist() for n, values in routed_headers(block).items()}
        for run in runs:
            address = HttpAddress(run.url, {**run.headers, "Content-Type": self._format.content_type})
            for row in range(run.low, run.high):
                mine = address
                if lists:
                    mine = HttpAddress(run.url, address.headers | _attributes(lists, row))
                if given:
                    own = {n: _escape(values[row]) for n, values in given.items() if values[row] is not None}
                    mine = HttpAddress(run.url, {**own, **mine.headers})
                body = data[bounds[row] : bounds[row + 1]]
                yield RequestPiece(block, numbers, row, row + 1, mine, _escape(ids[row].decode()), body)

    def _batches(self, block: Block, runs: list[_Run]) -> Iterator[RequestPiece]:
        addresses = [HttpAddress(run.url, {**run.headers, "Content-Type": self._batch_type()}) for run in runs]
        limit, numbers = self._config.max_events, block.offsets()
        stacked = self._format.stack(block, self._delivery.source)
        if stacked is None:
            for run, address in zip(runs, addresses, strict=True):
                for at in range(run.low, run.high, limit):
                    yield RequestPiece(block, numbers, at, min(at + limit, run.high), address)
            return
        ends, data = _stretches(stacked)
        room = self._config.max_bytes - 1 if self._array else self._config.max_bytes  # two brackets, a comma less
        for run, address in zip(runs, addresses, strict=True):
            at = run.low
            while at < run.high:
                fits = int(np.searchsorted(ends, ends[at] + room, side="right")) - 1
                end = min(max(fits, at + 1), at + limit, run.high)
                lines = data[ends[at] : ends[end]]
                body = _array(lines, ends[at : end + 1]) if self._array else lines
                yield RequestPiece(block, numbers, at, end, address, body=body)
                at = end

    def _body(self, block: Block) -> bytes | memoryview:
        source = self._delivery.source
        if not self._array:
            return memoryview(self._format.batch(block, source))
        stacked = self._format.stack(block, source)
        assert stacked is not None  # the config asks for JSON
        ends, data = _stretches(stacked)
        return _array(data[ends[0] : ends[-1]], ends)

    def _batch_type(self) -> str:
        if not self._array:
            return self._format.batch_content_type
        return "application/cloudevents-batch+json" if self._config.envelope == "cloudevents" else "application/json"

    def _identity(self, piece: RequestPiece) -> str:
        """Names exactly these events: with another cut of the batch the same key must not stand for others."""
        offsets, subs = piece.offsets(), sub_ordinals(piece.block)
        named = offsets.tobytes() + (b"" if subs is None else subs.tobytes())
        digest = hashlib.sha256(named + piece.whole.table.full_name.encode()).hexdigest()[:16]
        return f"{self._name}:{int(offsets[0])}-{int(offsets[-1])}:{digest}"


def _stands_between(block: Block) -> bool:
    """Whether an event of the block has a place among those of other keys: it has no key, or two of them."""
    return bool(np.isin(block.batch.column("op").to_numpy(), _KEYLESS).any()) or changes_a_key(block)


class _Run(NamedTuple):
    low: int
    high: int
    url: str
    headers: Mapping[str, str]


def _stretches(documents: pa.LargeBinaryArray) -> tuple[np.ndarray[Any, np.dtype[np.int64]], memoryview]:
    """Where each document ends, after a first zero, and all of them."""
    _, ends, data = documents.buffers()
    bounds = np.frombuffer(ends, np.int64)[documents.offset : documents.offset + len(documents) + 1]
    return bounds, memoryview(data or b"")


def _array(lines: memoryview, ends: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """JSON lines as one array: their ends become commas."""
    text = np.empty(len(lines) + 1, np.uint8)
    text[0] = ord("[")
    text[1:] = np.frombuffer(lines, np.uint8)
    text[ends[1:] - ends[0]] = ord(",")
    text[-1] = ord("]")
    return text.tobytes()


def _attributes(lists: Mapping[str, str | list[str | None]], row: int) -> dict[str, str]:
    """Of a CloudEvent, as headers."""
    found = {}
    for name, value in lists.items():
        if text := value if isinstance(value, str) else value[row]:
            of_content = name == "datacontenttype"
            found["Content-Type" if of_content else f"ce-{name}"] = text if of_content else cloudevents.header(text)
    return found


def _header_name(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text)


def _in_url(value: str) -> str:
    """Of a row: one segment of the path, or one value of the query, whatever it holds."""
    return quote(value, safe="")


def _climbs(url: str) -> bool:
    """A value of nothing but dots is the one that no encoding keeps from being a step (RFC 3986, 5.2.4 and 6.2.2.2)."""
    return not {".", ".."}.isdisjoint(url.partition("?")[0].split("/"))


def _escape(text: str) -> str:
    return quote(text, safe=_SEEN)
