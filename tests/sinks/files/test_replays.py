"""A batch that comes again, in whatever plan: every event is in exactly one file."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.sinks.files.support import content, offsets, published, sink, write_all
from tests.support.blocks import make_block
from tests.support.deliveries import by_offset, by_table, make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill.errors import DeliveryError, Refused
from tidemill.sinks.files.client import FileStore
from tidemill.sinks.files.resume import Journal


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
