"""The benches run and answer what they promise; how fast anything is, no test says."""

from __future__ import annotations

import pkgutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_change, position
from tidemill import registry, sinks
from tidemill.errors import ConfigError
from tidemill.lab.bench.baselines import BASELINES
from tidemill.lab.bench.formats import FormatsBench
from tidemill.lab.bench.lanes import LanesBench
from tidemill.lab.bench.latency import HOPS, PARTS, LatencyBench, summary
from tidemill.lab.bench.latency.alone import time_deliveries, time_writes
from tidemill.lab.bench.material import TABLE, Material
from tidemill.lab.bench.plots import save_lanes, save_latency, save_scale, save_throughput
from tidemill.lab.bench.processes import children
from tidemill.lab.bench.processors import FilterBench, ProcessorsBench
from tidemill.lab.bench.sensing import SensingBench
from tidemill.lab.bench.sinks import SinksBench
from tidemill.lab.bench.soak import MODES, SoakBench
from tidemill.lab.bench.sqlite import SqliteBench
from tidemill.lab.servers.kafka import Mock
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.delivery import Receipt
from tidemill.stream.report import BatchReport

#: Sinks that are not measured, each with its reason.
WITHOUT = {"blackhole": "sends nothing: `bench sinks` measures encoding for itself", "stdout": "a terminal's speed"}


def test_every_sink_is_measured_or_has_a_reason() -> None:
    own = {module.name for module in pkgutil.iter_modules(sinks.__path__) if not module.name.startswith("_")}
    assert own == {name.partition(":")[0] for name in BASELINES} | WITHOUT.keys()


def test_the_prepared_log_has_every_event_once_in_batches_of_the_right_size(tmp_path: Path) -> None:
    material = Material.make(tmp_path, 45_000)
    deliveries = material.deliveries(20_000, pipeline="p")
    assert (deliveries[0].start, deliveries[0].end) == (0, 1000)
    assert max(d.end - d.start for d in deliveries) <= 20_000
    offsets = [int(o) for d in deliveries for block in d for o in block.offsets()]
    assert offsets == list(range(45_000))
    assert {block.table.name for block in material.blocks()} == {TABLE.name}


@pytest.mark.parametrize("names", [("files",), ("files", "redis"), ("http", "http:event", "http:threads")])
def test_the_bench_of_sinks_answers_with_its_documented_keys(names: tuple[str, ...]) -> None:
    said: list[str] = []
    result = SinksBench(rows=3000, rounds=1, only=names, say=said.append).run()
    assert result["sinks"].keys() == set(names)
    for measured in result["sinks"].values():
        assert measured["rows_per_s"] > 0
        assert measured["ratio_plain_loop"] > 0
        assert measured["encode_us_per_row"] > 0
    formats = set(registry.names("formats")) if len(names) > 1 else set()
    assert result["formats"].keys() == formats
    assert all(form["us_per_row"] > 0 for form in result["formats"].values())
    assert said


def test_the_bench_of_formats_compares_encoders_that_write_the_same_events() -> None:
    result = FormatsBench(rows=2000, rounds=1, say=print).run()
    assert result["formats"].keys() == {"avro", "protobuf"}
    for measured in result["formats"].values():
        assert measured["same_events"]
        assert measured["us_per_row"] > 0
        assert measured["library_us_per_row"] > 0
    assert result["dictionaries_us_per_row"] > 0


def test_the_bench_of_sensing_answers_with_its_documented_keys() -> None:
    result = SensingBench(rows=2000, rounds=1, say=print).run()
    assert result["overhead_ratio"] > 0
    assert result["full_us_per_row"] > 0


def test_the_bench_of_pgstream_also_pulls_and_acks() -> None:
    result = SinksBench(rows=3000, rounds=1, only=("pgstream",), say=print).run()
    measured = result["sinks"]["pgstream"]
    assert measured["pull_batch"] == 1000
    assert measured["pull_messages_per_s"] > 0
    assert measured["plain_pull_messages_per_s"] > 0
    assert measured["pull_ratio_plain_loop"] > 0
    assert "SKIP LOCKED" in measured["pull_plain_loop"]


def test_a_sink_that_is_not_measured_is_named() -> None:
    with pytest.raises(ConfigError, match="blackhole"):
        SinksBench(rows=1000, rounds=1, only=("blackhole",), say=print)


@pytest.mark.slow
def test_the_bench_of_processors_answers_with_its_documented_keys() -> None:
    result = ProcessorsBench(rows=2000, rounds=1, say=print).run()
    measured = ("javascript_events_per_s", "filter_us_per_row", "mask_us_per_row", "flatten_us_per_row",
                "sql_us_per_row", "python_arrow_us_per_row")  # fmt: skip
    assert all(result[key] > 0 for key in measured)
    assert result["ratio_node"] is None or result["ratio_node"] > 0


def test_children_are_found_while_threads_come_and_go() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            thread = threading.Thread(target=time.sleep, args=(0,))
            thread.start()
            thread.join()

    churning = [threading.Thread(target=churn) for _ in range(4)]
    with subprocess.Popen(["sleep", "60"]) as child:
        for thread in churning:
            thread.start()
        try:
            assert all(child.pid in children() for _ in range(500))
        finally:
            stop.set()
            child.kill()
            for thread in churning:
                thread.join()


def test_the_bench_of_a_filter_end_to_end_answers_with_its_documented_keys(spark: Any) -> None:
    result = FilterBench(rows=2000, rounds=1, say=print).run(spark)
    assert result["end_to_end_events_per_s"] > 0
    assert result["ratio_filter_end_to_end"] > 0


def test_the_bench_of_sqlite_answers_with_its_documented_keys() -> None:
    result = SqliteBench(rows=2000, rounds=1, say=print).run()
    assert result["rows"] == 2000
    assert all(result[key] > 0 for key in ("rows_per_s", "select_rows_per_s", "ratio_read", "writer_ratio"))


def test_latency_is_told_hop_by_hop_and_the_hops_add_up(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10))
    log.append(make_change(10, number=2))
    log.close()
    written = [entry.written_at for entry in LogReader(str(tmp_path)).entries()]
    saved = written[-1] / 1000 + 0.050
    receipts = (
        Receipt("a", 0, encode_seconds=0.001, write_seconds=0.002),
        Receipt("b", 0, encode_seconds=0.003, write_seconds=0.012),
    )
    report = BatchReport(0, 0, 20, position(2), 1, 0.030, 0, receipts, delivery_seconds=0.020)
    found = summary(str(tmp_path), [(saved, report)])
    assert found["events"] == 20
    assert found["taken_to_delivered"]["p50"] == 20
    assert found["delivered_to_saved"]["p99"] == 10
    assert 20 <= found["logged_to_taken"]["p99_9"] <= 20 + written[-1] - written[0] + 0.01
    assert [found[part]["p50"] for part in PARTS] == [3, 12, 5]
    assert found.keys() == {"events", *HOPS, *PARTS}


def test_the_bench_of_latency_times_a_durable_write_and_a_plain_producer_by_themselves(tmp_path: Path) -> None:
    writes = time_writes(tmp_path, per_second=100, seconds=0.2)
    with Mock() as broker:
        deliveries = time_deliveries(broker.bootstrap, "alone", 10, per_second=50, seconds=0.2)
    assert (len(writes), len(deliveries)) == (20, 10)
    assert min(*writes, *deliveries) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_sink_whose_latency_is_not_measured_is_named() -> None:
    with pytest.raises(ConfigError, match="no latency is measured to files"):
        LatencyBench(sinks=["files"], modes=["real_time"], rates=[10], seconds=1, say=print)
    with pytest.raises(ConfigError, match="Choose of: blackhole, kafka"):
        LatencyBench(sinks=["redis"], modes=["real_time"], rates=[10], seconds=1, say=print, cluster=True)


def test_a_picture_of_latency_names_every_sink_rate_percentile_and_stage(tmp_path: Path) -> None:
    hop = {"p50": 2.0, "p99": 5.0, "p99_9": 9.0}
    measured = [
        {"mode": "real_time", "sink": sink, "rate": rate, **dict.fromkeys(HOPS, hop)}
        for sink in ("kafka", "redis")
        for rate in (10, 1000)
    ]
    words = _draw(save_latency, {"measured": measured, "place": "a cluster"}, tmp_path)
    for word in ("kafka", "redis", "p99.9", "checkpoint", "at 10 events a second", "at 1,000 events a second",
                 "ms from commit to checkpoint", "real time, a cluster"):  # fmt: skip
        assert word in words


@pytest.mark.parametrize("kafka", [True, False])
def test_a_picture_of_throughput_shows_the_cpu_of_every_process_by_destination(tmp_path: Path, kafka: bool) -> None:
    kinds = ["baseline", "blackhole", *(["kafka"] if kafka else []), "micro_batch_blackhole"]
    parts = {"capture": 0.9, "workers": 3.9, "jvm": 0.1, "driver": 0.1, "broker": 4.0}
    result = {"rows": 1000, "mode": "real_time", "seconds": {kind: [0.5, 0.6] for kind in kinds}}
    result |= {f"{kind}_rows_per_s": 2000 for kind in kinds} | {"kafka_us_per_row": parts if kafka else None}
    result |= {f"{part}_us_per_row": 0.5 for part in ("capture", "worker", "jvm", "driver")}
    words = _draw(save_throughput, result, tmp_path)
    for word in ("pg_recvlogical", "real time", "micro-batches", "JVM", "driver", "to blackhole", "2,000"):
        assert word in words
    assert ("to kafka" in words) == kafka


def test_a_picture_of_copies_has_a_panel_each_server(tmp_path: Path) -> None:
    scale = {str(tasks): {"rows_per_s": 500_000 * tasks, "copy_rows_per_s": 900_000} for tasks in (1, 2, 3, 4)}
    result = {"scale": scale, "server": "PostgreSQL 18", "mysql_scale": scale, "mysql_server": "MySQL 9"}
    words = _draw(save_scale, result, tmp_path)
    assert all(word in words for word in ("PostgreSQL 18", "MySQL 9", "tasks", "rows a second", "into the log"))


def test_a_picture_of_lanes_shows_each_sink_beside_as_many_times_one_lane(tmp_path: Path) -> None:
    result = {"lanes": {"blackhole": {"1": 900, "2": 1000}, "http": {"1": 20, "2": 39}},
              "titles": {"blackhole": "only encodes", "http": "waits"}}  # fmt: skip
    words = _draw(save_lanes, result, tmp_path)
    assert all(word in words for word in ("only encodes", "waits", "lanes", "events a second", "as many times"))


def _draw(save: Callable[[dict[str, Any], Path], None], result: dict[str, Any], directory: Path) -> str:
    """The picture as text. The same numbers give the same bytes: a committed picture changes with what it shows."""
    one, other = directory / "one.svg", directory / "other.svg"
    save(result, one)
    save(result, other)
    assert one.read_bytes() == other.read_bytes()
    save(result, directory / "one.png")
    assert (directory / "one.png").stat().st_size > 0
    return one.read_text()


def test_the_bench_of_lanes_answers_with_a_rate_for_each_sink_and_number(spark: Any) -> None:
    result = LanesBench(rows=20_000, rounds=1, lanes=(1, 2), say=print).run(spark)
    assert result["lanes"].keys() == result["titles"].keys() == {"blackhole", "http"}
    for rates in result["lanes"].values():
        assert rates.keys() == {"1", "2"}
        assert all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize("mode", MODES)
def test_the_bench_of_soaks_restarts_a_stream_and_sees_nothing_written_at_rest(spark: Any, mode: str) -> None:
    """Also the proof that a pipeline at rest writes no file of its state, whichever the trigger."""
    said: list[str] = []
    bench = SoakBench(
        pipelines=1, mode=mode, sink="blackhole", minutes=0, restarts=1, rest_seconds=3, rows=1000, say=said.append
    )
    result = bench.run(spark)
    assert [each["phase"] for each in result["samples"]] == ["started", "restart", "rest"]
    assert all(each["total_mb"] >= each["largest_worker_mb"] > 0 for each in result["samples"])
    assert result["samples"][-1]["mb"].keys() == {"driver", "jvm", "capture", "workers"}
    assert result["rest"]["cpu_seconds"].keys() == {"driver", "jvm", "capture", "workers"}
    assert result["rest"]["written"] == []
    assert len(said) == 3


def test_the_bench_of_soaks_delivers_what_it_writes_to_postgresql(spark: Any) -> None:
    bench = SoakBench(
        pipelines=1, mode="real_time", source="postgres", sink="blackhole", minutes=0, restarts=1, rest_seconds=0,
        rows=102_500, say=print,
    )  # fmt: skip
    result = bench.run(spark)
    assert (result["source"], result["rows"]) == ("postgres", 1000 + 103_000)
    assert [each["phase"] for each in result["samples"]] == ["started", "restart"]
