"""The commands: `bench profile` shows where the time goes, the others measure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidemill.cli import terminal
from tidemill.errors import ConfigError, to_data
from tidemill.lab.bench.command_lanes import lanes

app = terminal.commands("Measure speed, beside the system's own client in the same run.")
app.command()(lanes)


def _check_modes(modes: Iterable[str]) -> None:
    if unknown := set(modes) - {"real_time", "micro_batch"}:
        raise ConfigError(f"no trigger is called {', '.join(sorted(unknown))}", fix="Give real_time or micro_batch.")


@app.command()
def postgres(
    rows: Annotated[int, typer.Option(help="Row changes in the backlog that every run drains.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    large: Annotated[int, typer.Option(help="Rows of the one large transaction; 0 leaves it out.")] = 2_000_000,
    latency_seconds: Annotated[float, typer.Option(help="How long 1,000 events/s are offered; 0 leaves it out.")] = 20,
    kafka: Annotated[bool, typer.Option(help="Also to Kafka (a real broker where it can be had).")] = True,
    mode: Annotated[
        list[str] | None, typer.Option(help="The trigger's: real_time, micro_batch, or both; real_time.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the result here (.svg or .png).")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """End to end from PostgreSQL, beside pg_recvlogical.

    The client writes the same WAL to /dev/null."""
    from tidemill.lab.bench.plots import save_throughput
    from tidemill.lab.bench.postgres import Bench
    from tidemill.lab.bench.show import show

    modes = mode or ["real_time"]
    _check_modes(modes)
    say = (lambda text: None) if as_json else terminal.say
    with Bench(rows=rows, rounds=rounds, kafka=kafka, modes=modes, say=say) as bench:
        result = bench.run(large=large, latency_seconds=latency_seconds)
    if plot is not None:
        save_throughput(result, plot)
    if as_json:
        terminal.show_json(result)
    else:
        show(result)


@app.command()
def latency(
    sinks: Annotated[
        list[str] | None, typer.Argument(help="blackhole, kafka, postgres, redis; all by default.")
    ] = None,
    rate: Annotated[list[int] | None, typer.Option(help="Events a second, again for more; 10, 100, 1000.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="real_time, micro_batch, or both; real_time.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each rate is offered.")] = 20,
    at_once: Annotated[int | None, typer.Option(help="Events of a commit; a 100th of the rate.", min=1)] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On two Spark workers, the log on S3; blackhole, kafka. Needs root.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of it here (.svg or .png).")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """From commit to checkpoint, hop by hop, from PostgreSQL.

    Percentiles in milliseconds over all events, at each rate and into each sink; by traces
    of a tenth of the batches also every step."""
    from tidemill.lab.bench.latency import LatencyBench, alone_rows, rows_of, steps_rows
    from tidemill.lab.bench.plots import save_latency

    _check_modes(mode or ())
    bench = LatencyBench(
        sinks=sinks or (), modes=mode or ["real_time"], rates=sorted(rate or [10, 100, 1000]), seconds=seconds,
        say=(lambda text: None) if as_json else terminal.say, cluster=cluster, at_once=at_once,
    )  # fmt: skip
    result = bench.run()
    if plot is not None:
        save_latency(result, plot)
    if as_json:
        terminal.show_json(result)
        return
    terminal.show_table(
        *rows_of(result),
        title=f"{result['server']}, {result['place']}; milliseconds, p50 / p99",
    )
    terminal.show_table(*steps_rows(result), title="Step by step, of a tenth of the batches")
    terminal.show_table(*alone_rows(result), title="What the machine takes without a pipeline")


@app.command()
def mysql(
    rows: Annotated[int, typer.Option(help="Row changes in the binlog that every run reads.")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    server: Annotated[str, typer.Option(help="mysql or mariadb.")] = "mysql",
    peer_rows: Annotated[int, typer.Option(help="How many of them mysql-replication reads.")] = 100_000,
    kafka: Annotated[bool, typer.Option(help="Also to Kafka (a real broker where it can be had).")] = True,
    mode: Annotated[str, typer.Option(help="The trigger's: real_time or micro_batch.")] = "real_time",
    as_json: terminal.AsJson = False,
) -> None:
    """Capture alone and end to end, beside mysqlbinlog.

    From MySQL or MariaDB; the Python library mysql-replication reads a part of the same binlog."""
    from tidemill.lab.bench.mysql import MysqlBench

    if server not in ("mysql", "mariadb"):
        raise ConfigError(f'no server is called "{server}"', fix="Give mysql or mariadb.")
    _check_modes([mode])
    kind: Literal["mysql", "mariadb"] = "mysql" if server == "mysql" else "mariadb"
    say = (lambda text: None) if as_json else terminal.say
    with MysqlBench(kind, rows=rows, rounds=rounds, kafka=kafka, mode=mode, say=say) as bench:
        result = bench.run(peer_rows)
    if as_json:
        terminal.show_json(result)
        return
    goals = {
        "capture_rows_per_s": 1_000_000, "blackhole_rows_per_s": 400_000, "kafka_rows_per_s": 300_000,
        "ratio_mysql_replication": 50,
    }  # fmt: skip
    terminal.show_table(
        ["measure", "value", "goal"],
        [
            (key, f"{value:,}", f"≥ {goals[key]:,}" if key in goals else "")
            for key, value in result.items()
            if isinstance(value, int | float)
        ],
        title=str(result["server"]),
    )


@app.command()
def sqlite(
    rows: Annotated[int, typer.Option(help="Row changes that are written, recorded and read.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    as_json: terminal.AsJson = False,
) -> None:
    """From a SQLite file, beside a plain SELECT of its changes.

    And what the triggers cost whoever writes."""
    from tidemill.lab.bench.sqlite import SqliteBench

    result = SqliteBench(rows=rows, rounds=rounds, say=(lambda text: None) if as_json else terminal.say).run()
    if as_json:
        terminal.show_json(result)
        return
    goals = {"ratio_read": 0.4}
    terminal.show_table(
        ["measure", "value", "goal"],
        [
            (key, f"{value:,}", f"≥ {goals[key]}" if key in goals else "")
            for key, value in result.items()
            if isinstance(value, int | float)
        ],
        title=f"SQLite {result['sqlite']}",
    )


@app.command()
def snapshot(
    rows: Annotated[int, typer.Option(help="Rows of the 8-column table that every run copies.")] = 5_000_000,
    wide_rows: Annotated[int, typer.Option(help="Rows of the 40-column table; 0: a tenth of --rows.")] = 0,
    rounds: Annotated[int, typer.Option(help="Alternating runs, as far as there is time; the median counts.")] = 3,
    connections: Annotated[int, typer.Option(help="Chunks read at once, and connections of the client.")] = 2,
    seconds: Annotated[float, typer.Option(help="About how long all of it may take.")] = 330,
    source: Annotated[list[str] | None, typer.Option(help="postgres or mysql; both if not given.")] = None,
    mode: Annotated[str, typer.Option(help="The trigger's: real_time or micro_batch.")] = "real_time",
    plot: Annotated[Path | None, typer.Option(help="Write a picture of how it scales here (.svg or .png).")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """First copies, beside a COPY that is thrown away.

    Of PostgreSQL and MySQL, whose own client takes the place of COPY; into the log, to blackhole and to PostgreSQL."""
    from tidemill.lab.bench.plots import save_scale
    from tidemill.lab.bench.snapshot import SnapshotBench

    _check_modes([mode])
    kinds = source or ["postgres", "mysql"]
    for kind in kinds:
        if kind not in ("postgres", "mysql"):
            raise ConfigError(f'no server is called "{kind}"', fix="Give postgres or mysql.")
    result: dict[str, object] = {}
    with SnapshotBench(
        kinds=kinds,
        rows=rows,
        wide_rows=wide_rows or max(1, rows // 10),
        rounds=rounds,
        connections=connections,
        seconds=seconds,
        mode=mode,
        say=terminal.progress,
    ) as bench:
        for kind in kinds:
            result |= bench.run(kind)
    if plot is not None:
        save_scale(result, plot)
    if as_json:
        terminal.show_json(result)
        return
    goals = {"ratio_copy_log": "≥ 0.7", "ratio_copy_blackhole": "≥ 0.45", "peak_rss_mb": "≤ 400"}
    terminal.show_table(
        ["measure", "value", "goal"],
        [
            (key, f"{value:,}", goals.get(key.removeprefix("mysql_"), ""))
            for key, value in result.items()
            if isinstance(value, int | float)
        ],
    )


@app.command()
def sinks(
    names: Annotated[list[str] | None, typer.Argument(help="Which sinks; all of them if none is named.")] = None,
    rows: Annotated[int, typer.Option(help="Events that every sink is given.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 7,
    as_json: terminal.AsJson = False,
) -> None:
    """Every sink and wire format, beside the plainest client loop.

    All sinks write the same prepared log; no database is in the way."""
    from tidemill.lab.bench.sinks import SinksBench

    say = (lambda text: None) if as_json else terminal.say
    result = SinksBench(rows=rows, rounds=rounds, only=names or (), say=say).run()
    if as_json:
        terminal.show_json(result)
        return
    measured = [
        (name, f"{s['rows_per_s']:,}", f"{s['ratio_plain_loop']:.2f}", f"{s['encode_us_per_row']:.2f}",
         f"{s['write_us_per_row']:.2f}", s["plain_loop"])
        for name, s in result["sinks"].items()
    ]  # fmt: skip
    pulled = [
        (f"{name}, pull and ack", f"{s['pull_messages_per_s']:,}", f"{s['pull_ratio_plain_loop']:.2f}", "", "",
         s["pull_plain_loop"])
        for name, s in result["sinks"].items() if "pull_batch" in s
    ]  # fmt: skip
    terminal.show_table(
        ["sink", "rows/s", "of the plain loop", "encode µs", "write µs", "plain loop"],
        measured + pulled,
        title=f"{rows:,} events of an 8-column table; goal: 0.7 of the plain loop",
    )  # fmt: skip
    terminal.show_table(
        ["format", "µs/row"], [(name, f"{f['us_per_row']:.2f}") for name, f in result["formats"].items()]
    )


@app.command()
def formats(
    rows: Annotated[int, typer.Option(help="Events to encode.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="How often; the median counts.")] = 5,
    as_json: terminal.AsJson = False,
) -> None:
    """Avro and Protobuf, beside fastavro and protobuf.

    The same events and the same bytes; CPU time of one core."""
    from tidemill.lab.bench.formats import FormatsBench

    bench = FormatsBench(rows=rows, rounds=rounds, say=(lambda text: None) if as_json else terminal.say)
    result = bench.run()
    if as_json:
        terminal.show_json(result)


@app.command()
def processors(
    rows: Annotated[int, typer.Option(help="Events to process.")] = 200_000,
    rounds: Annotated[int, typer.Option(help="How often; the median counts.")] = 5,
    as_json: terminal.AsJson = False,
) -> None:
    """Every processor from block to block, JavaScript beside Node.

    CPU time of one core, that of V8's process included. A filter is also measured end to end, by the clock."""
    from tidemill.lab.bench.processors import FilterBench, ProcessorsBench
    from tidemill.stream.spark.session import create_session, warm_up

    say = (lambda text: None) if as_json else terminal.say
    result = ProcessorsBench(rows=rows, rounds=rounds, say=say).run()
    spark = create_session("tidemill bench")
    try:
        warm_up(spark)
        result |= FilterBench(rows=5 * rows, rounds=rounds, say=say).run(spark)
    finally:
        spark.stop()
    if as_json:
        terminal.show_json(result)
        return
    goals = {
        "javascript_events_per_s": "≥ 100,000", "ratio_node": "≥ 0.6", "filter_us_per_row": "≤ 0.2",
        "mask_us_per_row": "≤ 0.2", "flatten_us_per_row": "≤ 0.5", "rename_us_per_row": "≤ 0.5",
        "ratio_filter_end_to_end": "≥ 0.95",
    }  # fmt: skip
    terminal.show_table(
        ["measure", "value", "goal"],
        [(key, "absent" if value is None else f"{value:,}", goals.get(key, "")) for key, value in result.items()],
        title=f"{rows:,} events of an 8-column table, one core",
    )


@app.command()
def sensing(
    rows: Annotated[int, typer.Option(help="Events to deliver.")] = 400_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 5,
    as_json: terminal.AsJson = False,
) -> None:
    """What schema sensing costs, on a table with nested JSON.

    One lane of a prepared log into JSON files, with and without; no database, no Spark."""
    from tidemill.lab.bench.sensing import SensingBench

    bench = SensingBench(rows=rows, rounds=rounds, say=(lambda text: None) if as_json else terminal.say)
    result = bench.run()
    if as_json:
        terminal.show_json(result)


@app.command()
def server(
    pipelines: Annotated[int, typer.Option(min=2, help="Pipelines of the server, of which one is busy.")] = 12,
    rows: Annotated[
        int, typer.Option(min=1000, help="Row changes of each backlog that the busy one drains.")
    ] = 300_000,
    mode: Annotated[str, typer.Option(help="real_time or micro_batch; by default that of a document.")] = "",
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which it ends, with what it has measured.")] = 1800,
    as_json: terminal.AsJson = False,
) -> None:
    """What `serve` costs beside `run`, and a takeover.

    Real processes over SQLite files; one pipeline is busy, the others idle. `--pipelines 200` is the real size. Where
    it cannot go on it ends with what it has."""
    from tidemill.lab.bench.server import ServerBench
    from tidemill.lab.bench.show import show_server
    from tidemill.lab.bench.soak import MODES

    if mode not in ("", *MODES):
        raise ConfigError(f'no trigger of this bench is called "{mode}"', fix=f"Give {' or '.join(MODES)}.")
    bench = ServerBench(pipelines=pipelines, rows=rows, mode=mode, say=terminal.progress, limit_seconds=limit)
    problem = bench.try_all()
    if not as_json:
        show_server(bench.measured)
        if problem:
            raise problem
        return
    terminal.show_json(bench.measured | ({"error": to_data(problem)} if problem else {}))
    if problem:
        raise typer.Exit(problem.exit_code)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0, help="How long the first pipeline is under load.")] = 5,
    restarts: Annotated[int, typer.Option(min=0, help="Restarts of it after that, in the same session.")] = 20,
    pipelines: Annotated[int, typer.Option(min=1, help="Pipelines in the session; all but one are idle.")] = 1,
    mode: Annotated[str, typer.Option(help="real_time or micro_batch.")] = "real_time",
    source: Annotated[str, typer.Option(help="sqlite or postgres: what the first pipeline reads.")] = "sqlite",
    sink: Annotated[str, typer.Option(help="blackhole, files or kafka.")] = "blackhole",
    rows: Annotated[int, typer.Option(min=1, help="Row changes written at a time.")] = 100_000,
    rest_seconds: Annotated[float, typer.Option(min=0, help="How long everything is watched at rest.")] = 60,
    as_json: terminal.AsJson = False,
) -> None:
    """Memory over time and over restarts; CPU and writes at rest.

    All but the first read SQLite files, in one Spark session. Memory by process, shared pages counted once."""
    from tidemill.lab.bench.show import show_soak
    from tidemill.lab.bench.soak import MODES, SINKS, SOURCES, SoakBench

    for name, given, known in (("trigger", mode, MODES), ("source", source, SOURCES), ("sink", sink, SINKS)):
        if given not in known:
            raise ConfigError(f'no {name} of this bench is called "{given}"', fix=f"Give {' or '.join(known)}.")
    result = SoakBench(
        pipelines=pipelines, mode=mode, sink=sink, minutes=minutes, restarts=restarts, rest_seconds=rest_seconds,
        rows=rows, say=terminal.progress, source=source,
    ).run()  # fmt: skip
    if as_json:
        terminal.show_json(result)
        return
    show_soak(result, f"{pipelines} pipelines, {mode}, {source} to {sink}; at rest: {result['rest']}")


@app.command()
def profile(
    rows: Annotated[int, typer.Option(help="Row changes to capture and encode.")] = 500_000,
    as_json: terminal.AsJson = False,
) -> None:
    """Where the time goes, stage by stage, in microseconds a row."""
    from tidemill.lab.bench.profile import profile_postgres
    from tidemill.lab.bench.show import show_profile

    result = profile_postgres(rows)
    if as_json:
        terminal.show_json(result)
        return
    show_profile(result)
