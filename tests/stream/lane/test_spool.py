"""What processors made of a batch: in memory up to a bound, then in a file without a name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.support.blocks import make_block, make_table
from tidemill.stream.lane.spool import Spool


def test_what_does_not_fit_into_memory_is_read_from_a_file_as_often_as_asked() -> None:
    blocks = [make_block(500, table=make_table(f"t{n}"), offsets=range(n * 500, n * 500 + 500)) for n in range(6)]
    with Spool(memory_bytes=blocks[0].batch.nbytes * 2) as spool:
        spool.fill(iter(blocks))
        assert spool.bytes_on_disk > 0
        with ThreadPoolExecutor(4) as readers:
            for found in readers.map(lambda _: list(spool.blocks()), range(8)):
                assert [block.table for block in found] == [block.table for block in blocks]
                assert all(a.batch.equals(b.batch) for a, b in zip(found, blocks, strict=True))


def test_a_small_batch_touches_no_disk_and_an_empty_one_gives_nothing() -> None:
    with Spool() as spool:
        assert list(spool.blocks()) == []
        spool.fill(iter([make_block(3)]))
        assert spool.bytes_on_disk == 0
        assert [block.rows for block in spool.blocks()] == [3]
