"""Truncated and flipped bytes give a `DecodeError` or events: never another error, a hang, or a read out of bounds."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.damage import damage
from tests.decoders.pgoutput import corpus, goldens
from tests.support.pgstream import decode, frames, tables_of
from tests.support.seed import run_seed
from tidemill.errors import DecodeError

STREAMS = goldens.load()
SMALL = [pair for pair in STREAMS if len(pair[1].data) < 10_000]


@pytest.mark.parametrize("pair", SMALL, ids=map(goldens.label, SMALL))
def test_a_stream_that_ends_anywhere_is_an_unfinished_stream(pair: tuple[goldens.Golden, goldens.Stream]) -> None:
    golden, stream = pair
    whole = len(decode(stream.data, tables_of(golden.keys)))
    step = max(1, len(stream.data) // 80)
    for end in range(run_seed() % step, len(stream.data), step):  # other places with every commit
        assert len(decode(stream.data[:end], tables_of(golden.keys))) <= whole


@pytest.mark.slow  # a search of many examples
@pytest.mark.parametrize("pair", STREAMS, ids=map(goldens.label, STREAMS))
def test_damaged_bytes_give_a_decode_error_or_events(pair: tuple[goldens.Golden, goldens.Stream]) -> None:
    golden, stream = pair
    seed = run_seed()
    pick = random.Random(seed)
    refused = 0
    count = 40 if len(stream.data) < 10_000 else 12
    for i in range(count):
        broken = damage(stream.data, pick, corpus.HARMS)
        chunk = pick.choice((len(broken) + 1, 300))
        try:
            refused += not corpus.survive(
                broken, tables_of(golden.keys), chunk, spill_bytes=pick.choice((0, 1 << 20)), capacity=256
            )
        except BaseException as error:
            raise AssertionError(f"seed {seed}, stream {i}: {error!r}") from error
    assert refused or len(stream.data) > 10_000, f"seed {seed}: damage is hardly ever seen"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SMALL), st.data())
def test_a_flipped_byte_gives_a_decode_error_or_events(
    pair: tuple[goldens.Golden, goldens.Stream], data: st.DataObject
) -> None:
    golden, stream = pair
    at = data.draw(st.integers(0, len(stream.data) - 1))
    byte = data.draw(st.integers(0, 255))
    broken = stream.data[:at] + bytes([byte]) + stream.data[at + 1 :]
    corpus.survive(broken, tables_of(golden.keys), len(broken), spill_bytes=1 << 20, capacity=64)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_that_were_never_a_stream_give_a_decode_error_or_nothing(stream: bytes) -> None:
    corpus.survive(stream, tables_of({}), len(stream) + 1, spill_bytes=0, capacity=8)


@pytest.mark.slow  # kernels run as plain Python
def test_no_kernel_looks_outside_its_arrays() -> None:
    seed = run_seed()
    done = subprocess.run(
        [sys.executable, "-m", "tests.decoders.pgoutput.corpus", str(seed), "400"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_frame_longer_than_any_server_sends_is_refused_at_once() -> None:
    with pytest.raises(DecodeError, match="frame"):
        decode(b"d\xff\xff\xff\xff", tables_of({}))


def test_a_value_in_binary_which_nobody_asked_for_is_refused() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "delete_by_key")
    broken = stream.data.replace(b"K\x00\x02t", b"K\x00\x02b", 1)
    assert broken != stream.data
    with pytest.raises(DecodeError, match="does not follow the protocol"):
        decode(broken, tables_of(golden.keys))


def test_a_piece_of_a_streamed_transaction_inside_another_transaction_is_refused() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "delete_by_key")
    piece = b"d\x00\x00\x00\x22w" + bytes(24) + b"S" + (7).to_bytes(4, "big") + b"\x01"
    head = next(frame for frame in frames(stream.data) if frame[30:31] == b"B")
    for spill_bytes in (0, 1 << 20):
        with pytest.raises(DecodeError, match="inside a transaction"):
            decode(head + piece, tables_of(golden.keys), [len(head), len(piece)], spill_bytes=spill_bytes)
