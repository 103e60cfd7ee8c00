"""How long a stream's bytes are gathered: as long as that makes reads larger, and no longer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tidemill.net.buffered import _SHORTEST, BufferedReader, Pace


@pytest.fixture
def pair() -> Iterator[tuple[BufferedReader, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield BufferedReader(ours, "here", lambda frame: 0, pace=Pace(gather=0.05, buffer=32 << 20)), theirs


def test_a_trickle_is_handed_on_at_once(pair: tuple[BufferedReader, socket.socket]) -> None:
    reader, server = pair
    for _ in range(20):
        server.send(b"x" * 150)
        reader.consumed(len(reader.read(5)))
        assert reader._gathering_seconds() < _SHORTEST


def test_a_flood_is_gathered_for_as_long_as_may_be_and_a_silence_ends_that(
    pair: tuple[BufferedReader, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = pair
    now = 1000.0
    monkeypatch.setattr("tidemill.net.buffered.time.monotonic", lambda: now)
    for _ in range(20):
        now += 0.05
        reader._note_rate(512 << 10)
    assert reader._gathering_seconds() == reader.pace.gather
    for _ in range(20):
        now += 0.05
        reader._note_rate(64 << 10)
    assert 0.2 < reader._gathering_seconds() / reader.pace.gather < 0.3, "a quarter of what is worth all of it"
    now += 1
    assert reader._gathering_seconds() == 0
