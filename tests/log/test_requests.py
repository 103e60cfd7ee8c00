"""How many requests the log takes on S3, counted between the client and a real server: each is a wait."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.delivery.proxy import Proxy
from tests.log.conftest import Bucket
from tests.support.blocks import make_change
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.objects import ObjectStore

_REQUEST = re.compile(rb"^([A-Z]+) (\S+) HTTP/1.1\r$", re.MULTILINE)


class Counting(Proxy):
    """Keeps the method and the object of each request."""

    def __init__(self, target: int) -> None:
        self.requests: list[str] = []
        super().__init__(target)

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool, sent: list[int]) -> None:
        if answers:
            super()._pump(source, sink, answers, sent)
            return
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.requests += [f"{method.decode()} {path.decode()}" for method, path in _REQUEST.findall(data)]
                sink.sendall(data)
        for end in (source, sink):
            end.close()

    def take(self) -> list[str]:
        """Since the last time, without those of bookmarks, which are read a few times a second."""
        found, self.requests = self.requests, []
        return [request for request in found if ".json" not in request]


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as started:
        yield started


def test_an_append_is_two_puts_and_a_reader_finds_it_with_three_requests(server: SeaweedFS) -> None:
    with Counting(server.port) as wire:
        uri = server.log_uri("requests", "log", f"127.0.0.1:{wire.port}")
        writer, reader = LogWriter.open(uri, LogConfig.model_validate({})), LogReader(uri)
        for number in (1, 2):
            writer.append(make_change(10, number=number))
        assert reader.tail().offset == 20
        wire.take()
        writer.append(make_change(10, number=3))
        asked = wire.take()
        puts = [request for request in asked if not request.startswith(("GET", "HEAD"))]
        assert [request.rpartition(".")[2] for request in puts] == ["seg", "idx"], "each in one request"
        assert all(request.startswith("PUT") for request in puts)
        assert len(asked) == 9
        reader._index._looked_at = float("inf")  # whether its newest object is still the same one is not due
        assert reader.refs(20, 30)
        assert [request.partition(" ")[0] for request in wire.take()] == ["HEAD", "GET"], "nothing after it is sought"
        assert reader.tail().offset == 30
        assert [request.partition(" ")[0] for request in wire.take()] == ["HEAD"], "no news is one request"
        writer.close()


def test_readers_of_one_process_read_a_record_once(bucket: Bucket) -> None:
    class Noting(ObjectStore):
        def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
            found = super().read(name, at, size)
            if name.endswith(".idx") and found and size is None:
                read.append(name)
            return found

    read: list[str] = []
    writer = LogWriter.open(bucket.open(), LogConfig.model_validate({}))
    for number in (1, 2, 3):
        writer.append(make_change(10, number=number))
    store = bucket.open(Noting)
    first, second = LogReader(store), LogReader(store.reopen())
    assert first.tail() == second.tail()
    assert first.refs(0, 30) == second.refs(0, 30)
    assert len(read) == len(set(read)) == 3
    writer.close()
