"""What is in a file: formats, compression, names, and what a file cannot be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.readers import read_batch
from tests.sinks.files.support import content, delivery_of, offsets, published, sink, write_all
from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tidemill import registry
from tidemill.model.block import ODD, UNCHANGED, Block, Op
from tidemill.model.table import Table
from tidemill.sinks._shared.encoded import encoder
from tidemill.sinks.files import FilesConfig, folder_name


@pytest.mark.parametrize("format", registry.names("formats"))
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_every_format_is_a_file_that_its_readers_take(tmp_path: Path, format: str, compression: str) -> None:
    if (format, compression) == ("arrow", "gzip"):
        return  # a configuration error, see below
    blocks = [make_block(5), make_block(4, table=make_table(version=2), offsets=[5, 6, 7, 8])]
    options = {"format": format, "compression": compression}
    (receipt,) = [sink(tmp_path, **options).write(d) for d in make_deliveries(blocks, 0, 9, lanes=1)]
    assert (receipt.events, receipt.bytes > 0) == (9, True)
    encode: Any = encoder(FilesConfig.model_validate({"id": "f", "path": "x", **options}))
    packed = {"gzip": ".gz", "zstd": ".zst"}.get(compression, "") if format in ("json", "protobuf") else ""
    versions = ["-v1", "-v2"] if encode.schema_in_file else [""]
    assert [p.name for p in published(tmp_path)] == [
        f"{0:020}-{9:020}-0000of0001{version}{encode.suffix}{packed}" for version in versions
    ]
    if (format, compression) == ("avro", "zstd"):
        return  # fastavro has no zstandard here; tests/formats/test_avro.py looks inside
    rows = []
    for file in published(tmp_path):
        codec = {".gz": "gzip", ".zst": "zstd"}.get(packed)
        data = pa.input_stream(str(file), compression=codec).read()
        rows += read_batch(encode, blocks[1].table, data)
    assert [row["offset"] for row in rows] == list(range(9))
    assert [row["after"]["id"] for row in rows] == [*range(5), *range(4)]


@pytest.mark.parametrize("envelope", ["debezium", "cloudevents"])
def test_lines_may_have_another_envelope(tmp_path: Path, envelope: str) -> None:
    write_all(tmp_path, make_deliveries(make_events(10), 0, 10), envelope=envelope)
    lines = [json.loads(line) for file in published(tmp_path) for line in file.read_bytes().splitlines()]
    assert len(lines) == 10
    assert all(("specversion" if envelope == "cloudevents" else "ts_ns") in line for line in lines)


def test_compressed_lines_read_back(tmp_path: Path) -> None:
    batch = make_deliveries(make_events(20), 0, 20, lanes=1)
    write_all(tmp_path / "plain", batch)
    write_all(tmp_path / "gz", batch, compression="gzip")
    write_all(tmp_path / "zst", batch, compression="zstd")
    plain = list(content(tmp_path / "plain").values())
    assert [gzip.decompress(c) for c in content(tmp_path / "gz").values()] == plain
    assert [
        pa.CompressedInputStream(pa.BufferReader(c), "zstd").read() for c in content(tmp_path / "zst").values()
    ] == plain
    assert {p.name.split(".", 1)[1] for p in published(tmp_path / "zst")} == {"jsonl.zst"}


def test_table_names_that_are_no_file_names_are_encoded(tmp_path: Path) -> None:
    names = {"a/b": "public.a%2Fb", "ü. x": "public.ü. x", "50%": "public.50%25", "..": "public..."}
    assert {n: folder_name(make_table(n)) for n in names} == names
    assert folder_name(Table("", "", "../up", ())) == "%2E.%2Fup"
    table = make_table("../../etc/x")
    write_all(tmp_path / "in", [delivery_of([make_block(3, table=table)], 0, 3)])
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert offsets(tmp_path / "in") == [0, 1, 2]


def test_parquet_has_typed_columns_and_one_schema_whatever_the_events(tmp_path: Path) -> None:
    table = make_table()
    block = make_block(4, table=table, ops=[Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE], positions="0/1F")
    odd = pa.array([[{"side": 2, "column": 3, "text": "NaN"}], None, None, None], ODD)
    batch = block.batch.append_column("odd", odd)
    block = Block(table, batch.append_column("unchanged", pa.array([None, [6], None, None], UNCHANGED)))
    plain = make_block(2, table=table, offsets=[4, 5])
    for start, end, b in ((0, 4, block), (4, 6, plain)):
        write_all(tmp_path, [delivery_of([b], start, end)], format="parquet")
    first, second = published(tmp_path)
    assert first.name.endswith("-0000of0001-v1.parquet")
    read = pq.read_table(first)
    assert read.schema.equals(pq.read_table(second).schema)
    assert read.schema.field("after").type == table.arrow_struct()
    rows = read.to_pylist()
    assert [r["op"] for r in rows] == ["insert", "update", "delete", "truncate"]
    assert [r["event_id"] for r in rows] == [f"s:0/1F:{i}" for i in range(4)]
    assert [r["key"] for r in rows] == [None, {"id": 1}, {"id": 2}, None]
    assert [r["after"] for r in rows] == block.batch.column("after").to_pylist()
    assert [r["unchanged"] for r in rows] == [None, ["note"], None, None]
    assert rows[0]["odd"] == [{"side": "after", "column": "price", "text": "NaN"}]


def test_versions_of_a_table_in_one_delivery_get_a_parquet_file_each(tmp_path: Path) -> None:
    blocks = [make_block(3), make_block(3, table=make_table(version=2), offsets=[3, 4, 5])]
    write_all(tmp_path, [delivery_of(blocks, 0, 6)], format="parquet")
    assert [p.name[-11:] for p in published(tmp_path)] == ["-v1.parquet", "-v2.parquet"]


def test_a_table_without_key_or_columns_can_be_written_as_parquet(tmp_path: Path) -> None:
    bare = Table("shop", "public", "bare", (), version=1).with_fingerprint()
    batch = make_block(2, table=make_table(key=())).batch.select(range(6))
    for number, block in enumerate((make_block(2, table=make_table(key=())), Block(bare, batch))):
        path = tmp_path / str(number)
        write_all(path, [delivery_of([block], 0, 2)], format="parquet")
        assert pq.read_table(published(path)[0]).num_rows == 2


def test_what_a_file_cannot_be_is_a_configuration_error() -> None:
    for options, what in (
        ({"format": "arrow", "compression": "gzip"}, "Arrow has no gzip"),
        ({"format": "avro", "schema_registry": {"url": "http://r"}}, "a file has its schema inside"),
        ({"format": "parquet", "envelope": "cloudevents"}, "needs headers"),
        ({"format": "json", "envelope": "cloudevents", "cloudevents_mode": "binary"}, "needs headers"),
    ):
        with pytest.raises(ValueError, match=what):
            FilesConfig.model_validate({"id": "f", "path": "/x", **options})
