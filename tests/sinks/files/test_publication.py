"""Whole files, one per table, batch and lane, on any kind of path."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from tests.sinks.files.support import content, offsets, published, sink, write_all
from tests.support.deliveries import make_deliveries, make_events
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Refused, is_retryable
from tidemill.model.block import Block
from tidemill.sinks.files.client import FileStore
from tidemill.sinks.files.resume import Journal


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


def test_a_path_serves_one_sink_of_one_pipeline(tmp_path: Path) -> None:
    (delivery,) = make_deliveries(make_events(10), 0, 10, lanes=1)
    write_all(tmp_path, [delivery])
    with pytest.raises(Refused, match='belongs to pipeline "shop", sink "files"'):
        sink(tmp_path).write(dataclasses.replace(delivery, pipeline="other"))


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
