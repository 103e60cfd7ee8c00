"""How long a stream's bytes are gathered: as long as that makes reads larger, and no longer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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


@pytest.mark.parametrize("window", [0, 64 << 10])
def test_a_window_bounds_what_a_server_on_this_machine_sends_ahead_and_a_larger_frame_still_comes_whole(
    window: int,
) -> None:
    sent = bytes(range(256)) * (16 << 10)  # 4 MiB
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        before = ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        reader = BufferedReader(ours, "here", len, pace=Pace(window=window))
        held = ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert held == (2 * window if window else before), "Linux doubles it for what it keeps itself"
        sending = pool.submit(theirs.sendall, sent)
        while len(reader.pending) < len(sent):
            reader.read(5)
        sending.result()
        assert reader.pending == sent
