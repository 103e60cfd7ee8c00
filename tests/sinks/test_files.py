"""The files sink: whole files, one per table, batch and lane, and every event in exactly one of them."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import gzip
import itertools
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.formats.readers import read_batch
from tests.support.blocks import make_block, make_table
from tests.support.deliveries import by_offset, by_table, make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill import registry
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Refused, is_retryable
from tidemill.model.block import ODD, UNCHANGED, Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.table import Table
from tidemill.sinks._shared.encoded import encoder
from tidemill.sinks.files import FilesConfig, FilesSink, folder_name
from tidemill.sinks.files.client import FileStore
from tidemill.sinks.files.resume import Journal


def sink(path: Path | str, **options: Any) -> FilesSink:
    return FilesSink(FilesConfig(id="files", path=str(path), **options))


def published(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*.*") if p.is_file() and "_tidemill" not in p.parts)


def offsets(path: Path) -> list[int]:
    return sorted(json.loads(line)["offset"] for file in published(path) for line in file.read_bytes().splitlines())


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in published(path)}


def write_all(path: Path, deliveries: list[Delivery], **options: Any) -> None:
    """Each lane in a worker of its own, as after a restart."""
    for delivery in deliveries:
        sink(path, **options).write(delivery)


def delivery_of(blocks: list[Block], start: int, end: int) -> Delivery:
    return Delivery("shop", "s", start, end, 0, 1, lambda: iter(blocks))


def test_each_table_batch_and_lane_has_a_file_named_by_its_offsets(tmp_path: Path) -> None:
    blocks = make_events(40)
    receipts = [
        sink(tmp_path).write(d) for d in make_deliveries(blocks, 0, 20) + make_deliveries(blocks, 20, 40, lanes=1)
    ]
    assert list(content(tmp_path)) == [
        "public.customers/00000000000000000000-00000000000000000020-0001of0002.jsonl",
        "public.customers/00000000000000000020-00000000000000000040-0000of0001.jsonl",
        "public.orders/00000000000000000000-00000000000000000020-0000of0002.jsonl",
        "public.orders/00000000000000000020-00000000000000000040-0000of0001.jsonl",
    ]
    assert offsets(tmp_path) == list(range(40))
    assert [r.events for r in receipts] == [10, 10, 20]
    assert sum(r.bytes for r in receipts) == sum(map(len, content(tmp_path).values()))


def test_events_of_a_file_are_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    write_all(tmp_path, make_deliveries(make_events(60), 0, 60))
    for file in published(tmp_path):
        numbers = [json.loads(line)["offset"] for line in file.read_bytes().splitlines()]
        assert numbers == sorted(numbers)


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


@pytest.mark.parametrize(
    "options",
    [
        {}, {"compression": "gzip"}, {"compression": "zstd"}, {"format": "parquet"}, {"format": "avro"},
        {"format": "protobuf", "compression": "gzip"}, {"format": "arrow"},
    ],
)  # fmt: skip
def test_a_replay_leaves_the_same_files_with_the_same_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    batch = make_deliveries(make_events(40), 0, 40)
    write_all(tmp_path, batch, **options)
    first = content(tmp_path)
    write_all(tmp_path, batch, **options)
    assert content(tmp_path) == first


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


def test_nothing_is_seen_of_a_delivery_that_fails_while_it_is_read(tmp_path: Path) -> None:
    (delivery,) = make_deliveries(make_events(40), 0, 40, lanes=1)

    def broken() -> Iterator[Block]:
        yield from itertools.islice(delivery.blocks(), 1)
        raise OSError(28, "No space left on device")

    with pytest.raises(DeliveryError, match="No space left on device") as raised:
        sink(tmp_path).write(dataclasses.replace(delivery, blocks=broken))
    assert is_retryable(raised.value)
    assert content(tmp_path) == {}
    write_all(tmp_path, [delivery])
    assert offsets(tmp_path) == list(range(40))
    assert list((tmp_path / "_tidemill" / "drafts").iterdir()) == []


@pytest.mark.parametrize("survivors", [1, 2, 3])
def test_an_attempt_that_was_given_up_is_replaced_by_one_with_other_bounds_and_lanes(
    tmp_path: Path, survivors: int
) -> None:
    """Three lanes were at work on 20..60 when everything was killed and Spark's directory lost."""
    blocks = make_events(100)
    write_all(tmp_path, make_deliveries(blocks, 0, 20))
    write_all(tmp_path, make_deliveries(blocks, 20, 60, lanes=3)[:survivors])
    for start, end in [(20, 50), (50, 100)]:
        write_all(tmp_path, make_deliveries(blocks, start, end, lanes=2))
    assert offsets(tmp_path) == list(range(100))


def test_lanes_that_clean_up_at_the_same_time_do_not_take_each_others_files(tmp_path: Path) -> None:
    blocks = make_events(100)
    for round_number in range(10):
        path = tmp_path / str(round_number)
        write_all(path, make_deliveries(blocks, 0, 70, lanes=4)[:3])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            workers = [sink(path) for _ in range(4)]
            list(pool.map(lambda w, d: w.write(d), workers, make_deliveries(blocks, 0, 40, lanes=4)))
            list(pool.map(lambda w, d: w.write(d), workers, make_deliveries(blocks, 40, 100, lanes=4)))
        assert offsets(path) == list(range(100))


def test_a_replay_with_the_same_bounds_but_other_sharding_leaves_no_file_of_the_first(tmp_path: Path) -> None:
    blocks = make_events(40)
    write_all(tmp_path, make_deliveries(blocks, 0, 40, lanes=3, deal=by_offset))
    assert len(published(tmp_path)) == 6
    write_all(tmp_path, make_deliveries(blocks, 0, 40, lanes=3, deal=by_table))
    assert len(published(tmp_path)) == 2
    assert offsets(tmp_path) == list(range(40))


class Killed(BaseException):
    pass


class FragileStore(FileStore):
    """A stand-in for a process that dies: stops for ever after so many changes of the store."""

    left: list[None]

    def lose(self, after: int) -> FragileStore:
        object.__setattr__(self, "left", [None] * after)
        return self

    def _step(self) -> None:
        if not self.left:
            raise Killed
        self.left.pop()

    def create(self, name: str, compression: str | None = None) -> Any:
        self._step()
        return super().create(name, compression)

    def publish(self, draft: str, name: str) -> None:
        self._step()
        super().publish(draft, name)

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)


@pytest.mark.slow  # eighty stories
def test_killed_at_any_step_and_planned_anew_every_event_is_there_once(tmp_path: Path) -> None:
    blocks, seed = make_events(60), run_seed()
    chance = random.Random(seed)
    for case in range(80):
        path, offset, end = tmp_path / str(case), 0, 0
        trace = []
        while offset < 60:
            if end <= offset or chance.random() < 0.6:  # else the same bounds again
                end = min(60, offset + chance.choice([10, 20, 30, 60]))
            lanes, deal = chance.choice([1, 2, 3]), chance.choice([by_offset, by_table])
            fuse = chance.choice([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 99, 99, 99])
            trace.append((offset, end, lanes, deal.__name__, fuse))
            try:
                for delivery in make_deliveries(blocks, offset, end, lanes=lanes, deal=deal):
                    worker = sink(path)
                    worker._store = FragileStore(fs.LocalFileSystem(), str(path)).lose(fuse)
                    worker._journal = Journal(worker._store, "refuse")
                    worker.write(delivery)
            except Killed:
                continue
            if chance.random() < 0.8:  # else killed before the checkpoint was saved
                offset = end
        assert offsets(path) == list(range(60)), f"seed {seed}, case {case}: {trace}"


def test_events_that_come_again_after_finished_files_stop_the_sink_and_touch_nothing(tmp_path: Path) -> None:
    blocks = make_events(60)
    for start in (0, 20, 40):
        write_all(tmp_path, make_deliveries(blocks, start, start + 20))
    before = content(tmp_path)
    for start in (0, 10, 20):
        with pytest.raises(Refused, match=f"come again from offset {start}, but the files here reach offset 60") as e:
            write_all(tmp_path, make_deliveries(blocks, start, 60))
        assert "rewind: replace" in e.value.fix
    assert content(tmp_path) == before


@pytest.mark.parametrize("cuts", [[(0, 40)], [(0, 20)], [(0, 20), (20, 40)]])
@pytest.mark.parametrize("end", [20, 40])
@pytest.mark.parametrize("lanes", [1, 2])
def test_another_log_at_the_same_offsets_stops_the_sink_and_touches_nothing(
    tmp_path: Path, cuts: list[tuple[int, int]], end: int, lanes: int
) -> None:
    blocks, others = make_events(40), [make_block(40, positions="9/900")]
    for start, stop in cuts:
        write_all(tmp_path, make_deliveries(blocks, start, stop))
    before = content(tmp_path)
    for delivery in make_deliveries(others, 0, end, lanes=lanes):
        for _ in range(2):
            with pytest.raises(
                Refused, match=f"come again from offset 0, but the files here reach offset {cuts[-1][1]}"
            ):
                sink(tmp_path).write(delivery)
    assert content(tmp_path) == before
    assert not any((tmp_path / "_tidemill" / "drafts").iterdir())
    if len(cuts) > 1 and lanes > 1:
        return  # files of the same plan are left to their lanes, and these write no customers
    write_all(tmp_path, make_deliveries(others, 0, end, lanes=lanes), rewind="replace")
    assert offsets(tmp_path) == list(range(end))
    assert {json.loads(line)["position"] for f in published(tmp_path) for line in f.read_bytes().splitlines()} == {
        "9/900"
    }


def test_a_lane_without_events_does_not_remove_files_of_another_log(tmp_path: Path) -> None:
    write_all(tmp_path, make_deliveries(make_events(40), 0, 40, lanes=2))
    before = content(tmp_path)
    others = make_deliveries([make_block(20, offsets=range(0, 40, 2), positions="9/900")], 0, 40, lanes=2)
    for delivery in reversed(others):  # the second has none
        with pytest.raises(DeliveryError, match=r"dealt to lanes anew|come again"):
            sink(tmp_path).write(delivery)
    assert content(tmp_path) == before


def test_with_rewind_replace_the_files_from_there_on_are_written_anew(tmp_path: Path) -> None:
    blocks = make_events(60)
    for start in (0, 20, 40):
        write_all(tmp_path, make_deliveries(blocks, start, start + 20))
    write_all(tmp_path, make_deliveries(blocks, 20, 60, lanes=3), rewind="replace")
    assert offsets(tmp_path) == list(range(60))


def test_a_rewind_into_the_middle_of_a_file_keeps_it_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = make_events(60)
    write_all(tmp_path, make_deliveries(blocks, 0, 40, lanes=1))
    with caplog.at_level(logging.WARNING):
        write_all(tmp_path, make_deliveries(blocks, 20, 60, lanes=1), rewind="replace")
    assert "both sides of offset 20" in caplog.text
    counted = collections.Counter(offsets(tmp_path))
    assert set(counted) == set(range(60))
    assert {o for o, n in counted.items() if n == 2} == set(range(20, 40))


def test_notes_do_not_pile_up(tmp_path: Path) -> None:
    blocks = make_events(100)
    for start in range(0, 100, 10):
        write_all(tmp_path, make_deliveries(blocks, start, start + 10))
    assert len(list((tmp_path / "_tidemill" / "batches").iterdir())) == 2


def test_a_path_serves_one_sink_of_one_pipeline(tmp_path: Path) -> None:
    (delivery,) = make_deliveries(make_events(10), 0, 10, lanes=1)
    write_all(tmp_path, [delivery])
    with pytest.raises(Refused, match='belongs to pipeline "shop", sink "files"'):
        sink(tmp_path).write(dataclasses.replace(delivery, pipeline="other"))


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


def test_a_store_that_is_no_local_disk_gets_the_same_files(tmp_path: Path) -> None:
    """A subtree stands in for remote file systems: everything goes through pyarrow.fs, nothing is synced."""
    batch = make_deliveries(make_events(20), 0, 20, lanes=1)
    write_all(tmp_path / "local", batch)
    (tmp_path / "remote").mkdir()
    store = FileStore(fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem()), "bucket")
    worker = sink(tmp_path / "unused")
    worker._store, worker._journal = store, Journal(store, "refuse")
    worker.write(batch[0])
    assert content(tmp_path / "remote" / "bucket") == content(tmp_path / "local")


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    write_all(tmp_path / "a", make_deliveries(make_events(10), 0, 10))
    sink((tmp_path / "b").as_uri()).write(make_deliveries(make_events(10), 0, 10)[0])
    assert FileStore.at((tmp_path / "b").as_uri()).local
    assert len(published(tmp_path / "b")) == 1


def test_doctor_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        str(tmp_path / "new" / "deep"): Outcome.PASS,
        str(tmp_path / "file"): Outcome.FAIL,
        "nowhere://bucket/x": Outcome.FAIL,
    }
    for path, outcome in cases.items():
        (check,) = sink(path).doctor()
        assert check.outcome is outcome, check
        assert bool(check.fix) == (outcome is Outcome.FAIL)
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_doctor_notices_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        (check,) = sink(tmp_path / "x").doctor()
    finally:
        tmp_path.chmod(0o700)
    assert check.outcome is Outcome.FAIL


def test_what_a_file_cannot_be_is_a_configuration_error() -> None:
    for options, what in (
        ({"format": "arrow", "compression": "gzip"}, "Arrow has no gzip"),
        ({"format": "avro", "schema_registry": {"url": "http://r"}}, "a file has its schema inside"),
        ({"format": "parquet", "envelope": "cloudevents"}, "needs headers"),
        ({"format": "json", "envelope": "cloudevents", "cloudevents_mode": "binary"}, "needs headers"),
    ):
        with pytest.raises(ValueError, match=what):
            FilesConfig.model_validate({"id": "f", "path": "/x", **options})


@pytest.mark.parametrize("rewind", ["refuse", "replace"])
def test_a_dead_letter_sent_again_is_one_file_more_and_removes_none(tmp_path: Path, rewind: str) -> None:
    blocks = make_events(40)
    (first,) = make_deliveries(blocks, 0, 20, lanes=1)
    (second,) = make_deliveries(blocks, 20, 40, lanes=1)
    write_all(tmp_path, [first.without([7]), second], rewind=rewind)
    assert offsets(tmp_path) == [offset for offset in range(40) if offset != 7]
    (dead_letter,) = make_deliveries(blocks, 7, 8, lanes=1)
    write_all(tmp_path, [dataclasses.replace(dead_letter, redelivered=True)], rewind=rewind)
    assert offsets(tmp_path) == list(range(40))
    write_all(tmp_path, [second], rewind=rewind)
    assert offsets(tmp_path) == list(range(40))


class RacedStore(FileStore):
    """Somebody else puts the same name between the writing of a draft and its publication."""

    def publish(self, draft: str, name: str) -> None:
        FileStore(self.files, self.root).put(name, b"theirs")
        super().publish(draft, name)


def test_two_lanes_that_put_the_same_name_at_once_leave_it_whole(tmp_path: Path) -> None:
    store = FileStore.at(str(tmp_path))
    RacedStore(store.files, store.root).put("owner.json", b"ours")
    assert store.get("owner.json") == b"ours"
