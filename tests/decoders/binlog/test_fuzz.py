"""Truncated and flipped bytes of a binlog give an error of ours or events: never another error, a hang, or a read
out of bounds."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.binlog import corpus as mycorpus
from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.binlog.corpus import Pair
from tests.support.binlogstream import decode
from tests.support.seed import run_seed
from tidemill.errors import DecodeError, SourceError

STREAMS = mygoldens.load()
SMALL = [pair for pair in STREAMS if len(pair[1].data) < 3_000]


@pytest.mark.parametrize("pair", SMALL, ids=map(mygoldens.label, SMALL))
def test_a_stream_that_ends_anywhere_is_an_unfinished_stream(pair: Pair) -> None:
    golden, stream = pair
    step = max(1, len(stream.data) // 50)
    for end in range(run_seed() % step, len(stream.data), step):  # other places with every commit
        decode(stream.data[:end], golden.tables(stream.flavor), stream.flavor, began=stream.began)


@pytest.mark.slow  # a search of many examples
@pytest.mark.parametrize("pair", STREAMS, ids=map(mygoldens.label, STREAMS))
def test_damaged_bytes_give_an_error_or_events(pair: Pair) -> None:
    seed = run_seed()
    pick = random.Random(seed)
    count = 60 if len(pair[1].data) < 10_000 else 12
    try:
        refused = sum(not mycorpus.attempt(pair, pick) for _ in range(count))
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    assert refused or count < 60, f"seed {seed}: damage is hardly ever seen"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SMALL), st.data())
def test_a_changed_byte_is_always_noticed_where_events_have_checksums(pair: Pair, data: st.DataObject) -> None:
    golden, stream = pair
    if "checksums" in golden.name:
        return
    # Behind the two events that the server makes up, whose fields we do not all use.
    first = _after_the_format(stream.data)
    at = data.draw(st.integers(first, len(stream.data) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != stream.data[at]))
    broken = stream.data[:at] + bytes([byte]) + stream.data[at + 1 :]
    tables = golden.tables(stream.flavor)
    try:
        decode(broken, tables, stream.flavor, began=stream.began)
    except (DecodeError, SourceError):
        return
    # A packet's number in its sequence says nothing, and a length that grew waits for bytes that never come.
    assert _is_packet_header(stream.data, at) or _is_made_up(stream.data, at)


@pytest.mark.slow  # kernels run as plain Python
def test_no_kernel_looks_outside_of_its_bytes() -> None:
    seed = run_seed()
    done = subprocess.run(
        [sys.executable, "-m", "tests.decoders.binlog.corpus", str(seed), "150"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"


def _starts(stream: bytes) -> list[tuple[int, int]]:
    """(first byte, kind of event) of every packet."""
    found, at = [], 0
    while at < len(stream):
        found.append((at, stream[at + 9]))
        at += 4 + int.from_bytes(stream[at : at + 3], "little")
    return found


def _after_the_format(stream: bytes) -> int:
    starts = _starts(stream)
    index = next(i for i, (_, kind) in enumerate(starts) if kind == 15)
    return starts[index + 1][0]


def _is_packet_header(stream: bytes, at: int) -> bool:
    return any(start <= at < start + 4 for start, _ in _starts(stream))


def _is_made_up(stream: bytes, at: int) -> bool:
    """ROTATE and FORMAT_DESCRIPTION, also in the middle of a stream."""
    inside = [kind for start, kind in _starts(stream) if start <= at]
    return inside[-1] in (4, 15)
