"""One trace from a commit to its receipt, through the capture process, the driver and Spark's workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.waiting import until
from tidemill import config
from tidemill.lab.servers.collector import ReceivedSpan, collecting
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.runtime import Runtime

DOCUMENT = """\
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", tables: [public.orders], slot: {slot}, publication: {slot}}}
  processors:
    - {{type: filter, config: {{id: kept, where: {{field: op, eq: insert}}}}}}
  sinks:
    - {{type: blackhole, config: {{id: nowhere}}}}
    - {{type: files, config: {{id: lake, path: "{directory}/lake-{name}"}}}}
  trigger: {{mode: {mode}}}
  sharding: {{count: 1}}
  state_dir: {directory}/state
"""
WRITES = {"sink.write nowhere", "sink.write lake"}


def tree(spans: list[ReceivedSpan]) -> dict[str, str]:
    """Each span's name, of a sink's write with the sink, and its parent's name."""
    names = {span.id: " ".join((span.name, span.attributes.get("tidemill.sink", ""))).strip() for span in spans}
    return {names[span.id]: names.get(span.parent, "") for span in spans}


def test_a_transaction_is_one_trace_from_its_commit_to_its_checkpoint_in_both_triggers(
    tmp_path: Path, spark: Any, postgres18: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres18.database("traced") as dsn, collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        runtime = Runtime(spark=spark)
        try:
            for mode in ("micro_batch", "real_time"):
                name = mode.replace("_", "-")
                file = tmp_path / f"{name}.yaml"
                file.write_text(
                    DOCUMENT.format(name=name, mode=mode, dsn=dsn, directory=tmp_path, slot=f"traced_{mode}")
                )
                (pipeline,) = config.load(file)
                runtime.add(pipeline)
            with psycopg.connect(dsn, autocommit=True) as shop:
                shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
                for name in runtime.names:
                    runtime.start(name)
                until(lambda: all(runtime.status(name).began for name in runtime.names))
                shop.execute("INSERT INTO orders SELECT generate_series(1, 100)")
                committed = time.time_ns()

            def finished() -> bool:
                """A trace has its root from capture and its batch from the driver."""
                spans = collector.spans()
                ends = {span.trace for span in spans if span.name == "stream.checkpoint"}
                return len({span.trace for span in spans if span.name == "change"} & ends) == 2

            until(finished)
        finally:
            runtime.close()
        spans = collector.spans()
    for mode in ("micro_batch", "real_time"):
        (batch,) = (span for span in spans if span.attributes.get("tidemill.trigger") == mode)
        trace = [span for span in spans if span.trace == batch.trace]
        by_name = {span.name: span for span in trace}
        assert tree(trace) == {
            "change": "",
            **dict.fromkeys(
                ("server.send", "capture.read", "capture.decode", "capture.append", "stream.batch"), "change"
            ),
            **dict.fromkeys(
                ("stream.pin", "stream.deliver", "stream.receipts", "stream.checkpoint"), "stream.batch"
            ),
            "lane.deliver": "stream.deliver",
            **dict.fromkeys(("lane.read", "lane.process", *WRITES), "lane.deliver"),
        }  # fmt: skip
        assert len(trace) == len(tree(trace)), "a span came twice"
        order = [
            "server.send", "capture.read", "capture.decode", "capture.append", "stream.pin", "stream.deliver",
            "lane.deliver", "lane.process", "sink.write", "stream.receipts", "stream.checkpoint",
        ]  # fmt: skip
        begins = [by_name[name].start for name in order]
        assert begins == sorted(begins)
        assert all(span.start <= span.end for span in trace)
        change = by_name["change"]
        assert change.start <= min(by_name["capture.decode"].start, committed)
        said = {
            name: change.attributes[f"tidemill.{name}"]
            for name in ("pipeline", "rows", "tables", "offset.first", "offset.last")
        }
        assert said == {
            "pipeline": mode.replace("_", "-"), "rows": 100, "tables": 1, "offset.first": 0, "offset.last": 99,
        }  # fmt: skip
        assert [batch.attributes[f"tidemill.{name}"] for name in ("rows", "tables", "sinks", "lanes", "retries")] == [
            100, 1, "nowhere,lake", 1, 0,
        ]  # fmt: skip
        assert batch.attributes["tidemill.bytes"] > 0
        assert by_name["sink.write"].attributes["tidemill.events"] == 100
        assert {span.service for span in trace} == {"tidemill"}
