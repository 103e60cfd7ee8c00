"""How a broker of our own is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.lab.servers.kafka import JAVA_OPTIONS, Broker


def test_java_gets_the_options_that_kafka_itself_would_give_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(tmp_path, Path("jars"))
    monkeypatch.delenv(JAVA_OPTIONS, raising=False)
    plain = broker._java()
    monkeypatch.setenv(JAVA_OPTIONS, "-Da=1 '-Db=two words'")
    assert broker._java() == [*plain[:-2], "-Da=1", "-Db=two words", "-cp", "jars/*"]
