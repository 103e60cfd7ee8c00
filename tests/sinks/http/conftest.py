"""A scripted receiver, and sinks that send to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.lab.servers.http_receiver import Receiver
from tidemill.sinks.http import HttpConfig, HttpSink, client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY", dataclasses.replace(client._RETRY, first=0.002, most=0.01))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def sinks(receiver: Receiver) -> Iterator[Any]:
    made: list[HttpSink] = []

    def make(path: str = "/hook", url: str | None = None, **options: Any) -> HttpSink:
        made.append(HttpSink(HttpConfig(id="h", url=url or receiver.url + path, **options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()
