"""Avro and Protobuf beside fastavro and google.protobuf: the same events, CPU time of one core.

The libraries get what they want to have, which is a dictionary per row, made beforehand from our bytes. It is checked
that they write the same events from them, as many bytes each. What it costs to get from Arrow to a dictionary per row
is measured apart: every way through a library pays at least that too.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from tidemill import registry
from tidemill.errors import EnvironmentProblem
from tidemill.lab.bench.material import Material
from tidemill.model.block import Block

_SOURCE = "bench"
_SINGLE_OBJECT = 10  # bytes before the datum: two of a marker, eight of the schema's fingerprint

Encode = Callable[[Sequence[Any]], list[bytes]]
Read = Callable[[bytes], Any]
Prepared = tuple[str, list[list[Any]], Encode, Read]  # the library, its rows by block, and how it writes and reads


class FormatsBench:
    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            self._say(f"making {self.rows:,} events")
            blocks = Material.make(Path(scratch) / "log", self.rows).blocks()
        found: dict[str, Any] = {"rows": self.rows, "rounds": self.rounds, "formats": {}}
        for name, prepare in (("avro", _avro), ("protobuf", _protobuf)):
            found["formats"][name] = self._compare(name, blocks, prepare)
        found["dictionaries_us_per_row"] = self._clock(lambda: [block.batch.to_pylist() for block in blocks])
        self._say(f"  {'dictionaries':<12} {found['dictionaries_us_per_row']:>8.3f} µs a row, from Arrow")
        return found

    def _compare(self, name: str, blocks: list[Block], prepare: Any) -> dict[str, Any]:
        form = registry.load("formats", name)()
        documents = [form.encode(block, _SOURCE).to_pylist() for block in blocks]
        library, objects, encode, read = prepare(form, blocks[0], documents)
        same = all(
            len(one) == len(other) and read(one) == read(other)
            for one, other in zip(encode(objects[0]), documents[0], strict=True)
        )
        ours = self._clock(lambda: [form.encode(block, _SOURCE) for block in blocks])
        theirs = self._clock(lambda: [encode(part) for part in objects])
        self._say(
            f"  {name:<12} {ours:>8.3f} µs a row; {library} {theirs:.3f} from dictionaries, "
            f"{'the same' if same else 'OTHER'} events"
        )
        return {
            "us_per_row": ours, "library": library, "library_us_per_row": theirs, "ratio": round(theirs / ours, 1),
            "same_events": same,
        }  # fmt: skip

    def _clock(self, work: Callable[[], object]) -> float:
        """Microseconds of CPU a row, median of the rounds."""
        spent = []
        for _ in range(self.rounds):
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
        return round(median(spent) / self.rows * 1e6, 3)


def _avro(form: Any, block: Block, documents: list[list[bytes]]) -> Prepared:
    try:
        import fastavro
    except ImportError as error:
        raise EnvironmentProblem("fastavro is not installed", fix="pip install 'tidemill[bench]'") from error
    schema = fastavro.parse_schema(json.loads(form.schema(block.table, _SOURCE).text))
    head = documents[0][0][:_SINGLE_OBJECT]

    def read(document: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(document[_SINGLE_OBJECT:]), schema, None)

    def encode(rows: Sequence[Any]) -> list[bytes]:
        made = []
        for row in rows:
            buffer = io.BytesIO()
            buffer.write(head)
            fastavro.schemaless_writer(buffer, schema, row)
            made.append(buffer.getvalue())
        return made

    return f"fastavro {fastavro.__version__}", [[read(d) for d in part] for part in documents], encode, read


def _protobuf(form: Any, block: Block, documents: list[list[bytes]]) -> Prepared:
    try:
        from tidemill.lab.protofile import load_messages
    except ImportError as error:
        raise EnvironmentProblem("protobuf is not installed", fix="pip install 'tidemill[bench]'") from error

    schema = form.schema(block.table, _SOURCE)
    message = load_messages(schema.text)[schema.name]

    def encode(rows: Sequence[Any]) -> list[bytes]:
        return [message(**row).SerializeToString(deterministic=True) for row in rows]

    def read(document: bytes) -> Any:
        return message.FromString(document)  # fields may come in any order

    objects = [[_fields(read(document)) for document in part] for part in documents]
    return f"protobuf {version('protobuf')}", objects, encode, read


def _fields(message: Any) -> dict[str, Any]:
    """What a caller has before there is a message: names and values, dictionaries for messages inside."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            found[field.name] = list(value) if field.is_repeated else value
        else:
            found[field.name] = [_fields(item) for item in value] if field.is_repeated else _fields(value)
    return found
