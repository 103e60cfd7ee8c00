"""The batch under way on disk, and which one a start finds there after the trigger's mode was changed."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.stream.position.test_pins import state, write_spark_dir
from tests.support.blocks import make_change
from tidemill.contracts import StateStore
from tidemill.errors import StreamError
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.stream.batch.admission import admit
from tidemill.stream.position import pins
from tidemill.stream.position.pin_file import PinFile, PinnedBatch

__all__ = ["state"]  # a fixture

FIRST, SECOND = PinnedBatch(0, 10, 2, "hash"), PinnedBatch(10, 15, 1, "hash:id")


def test_the_last_pin_is_read_back(tmp_path: Path) -> None:
    assert PinFile(tmp_path).read() is None
    for batch in (FIRST, SECOND):
        file = PinFile(tmp_path)
        file.write(batch)
        file.close()
        assert PinFile(tmp_path).read() == batch


def test_a_pin_that_was_torn_leaves_the_one_before(tmp_path: Path) -> None:
    file = PinFile(tmp_path)
    file.write(FIRST)
    whole = (tmp_path / "pinned").read_bytes()
    file.write(SECOND)
    file.close()
    now = (tmp_path / "pinned").read_bytes()
    changed = [at for at in range(len(now)) if now[at] != whole[at]]
    for kept in range(len(changed)):
        torn = bytearray(whole)
        for at in changed[:kept]:
            torn[at] = now[at]
        (tmp_path / "pinned").write_bytes(torn)
        assert PinFile(tmp_path).read() == FIRST, f"{kept} of {len(changed)} bytes were written"


def test_bounds_of_many_columns_are_pinned_too(tmp_path: Path) -> None:
    file = PinFile(tmp_path)
    for batch in (FIRST, PinnedBatch(10, 20, 1, "hash:" + "x" * 5000), PinnedBatch(20, 30, 1, "table")):
        file.write(batch)
        assert PinFile(tmp_path).read() == batch
    file.close()


def test_a_pin_of_the_version_before_is_read_and_followed(tmp_path: Path) -> None:
    text = b'{"number":7,"start":0,"end":10,"lanes":2,"by":"hash"}'
    record = b"%08x %s\n" % (zlib.crc32(text), text)
    (tmp_path / "pinned").write_bytes(bytes(4096) + record.ljust(4096, b"\0"))
    file = PinFile(tmp_path)
    assert file.read() == FIRST
    file.write(SECOND)
    file.close()
    assert PinFile(tmp_path).read() == SECOND
    assert (tmp_path / "pinned").read_bytes()[4096:].startswith(record)


def test_a_disk_that_takes_no_pin_is_a_stream_error(tmp_path: Path) -> None:
    (tmp_path / "spark").write_text("in the way")
    with pytest.raises(StreamError, match="could not be noted"):
        PinFile(tmp_path / "spark").write(FIRST)


def test_a_micro_batch_under_way_is_the_first_of_real_time(tmp_path: Path, state: StateStore) -> None:
    write_spark_dir(tmp_path, [20, 35], [0])
    state.save_spark_start("p", 10)
    epochs, file = pins.settle_real_time(tmp_path, 20, state, "p")
    assert file.read() == PinnedBatch(20, 35, 1, "table")
    assert not (tmp_path / "query").exists()
    assert not epochs.exists()


@pytest.mark.parametrize(("ended", "checkpoint"), [([0, 1], 35), ([0], 35), ([0], 27)])
def test_a_micro_batch_that_ended_or_that_nobody_stands_before_is_not_pinned(
    tmp_path: Path, state: StateStore, ended: list[int], checkpoint: int
) -> None:
    write_spark_dir(tmp_path, [20, 35], ended)
    state.save_spark_start("p", 10)
    assert pins.settle_real_time(tmp_path, checkpoint, state, "p")[1].read() is None


@pytest.mark.parametrize("settle", [pins.settle, pins.settle_real_time])
def test_an_operator_who_moved_the_checkpoint_ends_what_was_pinned(
    tmp_path: Path, state: StateStore, settle: object
) -> None:
    file = PinFile(tmp_path)
    file.write(SECOND)
    file.close()
    assert state.spark_start("p") is None, "as `tidemill checkpoints set` leaves it"
    assert callable(settle)
    settle(tmp_path, 10, state, "p")
    assert PinFile(tmp_path).read() is None
    assert state.spark_start("p") == 10


def test_what_real_time_pinned_is_admitted_as_a_micro_batch(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    rule = {"pinned": {"start": 10, "end": 15, "lanes": 3, "by": "hash"}}
    for rows, given in ((12, {"offset": 10}), (13, {"offset": 15, "lanes": 3, "by": "hash"})):
        log.append(make_change(rows, number=rows))
        assert admit(LogReader(str(tmp_path / "log")), rule, {"offset": 10}, wait=0) == given
    log.close()
