"""The commands: `bench postgres`, `mysql`, `sinks` and `formats` measure, `bench profile` shows where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tidemill.cli import terminal
from tidemill.errors import ConfigError

app = terminal.commands("Measure speed, beside the system's own client in the same run.")


@app.command()
def postgres(
    rows: Annotated[int, typer.Option(help="Row changes in the backlog that every run drains.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    large: Annotated[int, typer.Option(help="Rows of the one large transaction; 0 leaves it out.")] = 2_000_000,
    latency_seconds: Annotated[float, typer.Option(help="How long 1,000 events/s are offered; 0 leaves it out.")] = 20,
    kafka: Annotated[bool, typer.Option(help="Also to Kafka (a real broker where it can be had).")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the result here (.svg or .png).")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """End to end from PostgreSQL, beside pg_recvlogical.

    The client writes the same WAL to /dev/null."""
    from tidemill.lab.bench.postgres import Bench
    from tidemill.lab.bench.show import save_plot, show

    with Bench(rows=rows, rounds=rounds, kafka=kafka, say=(lambda text: None) if as_json else terminal.say) as bench:
        result = bench.run(large=large, latency_seconds=latency_seconds)
    if plot is not None:
        save_plot(result, plot)
    if as_json:
        terminal.show_json(result)
    else:
        show(result)


@app.command()
def mysql(
    rows: Annotated[int, typer.Option(help="Row changes in the binlog that every run reads.")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    server: Annotated[str, typer.Option(help="mysql or mariadb.")] = "mysql",
    peer_rows: Annotated[int, typer.Option(help="How many of them mysql-replication reads.")] = 100_000,
    kafka: Annotated[bool, typer.Option(help="Also to Kafka (a real broker where it can be had).")] = True,
    as_json: terminal.AsJson = False,
) -> None:
    """Capture alone and end to end, beside mysqlbinlog.

    From MySQL or MariaDB; the Python library mysql-replication reads a part of the same binlog."""
    from tidemill.lab.bench.mysql import MysqlBench

    if server not in ("mysql", "mariadb"):
        raise ConfigError(f'no server is called "{server}"', fix="Give mysql or mariadb.")
    kind: Literal["mysql", "mariadb"] = "mysql" if server == "mysql" else "mariadb"
    say = (lambda text: None) if as_json else terminal.say
    with MysqlBench(kind, rows=rows, rounds=rounds, kafka=kafka, say=say) as bench:
        result = bench.run(peer_rows)
    if as_json:
        terminal.show_json(result)
        return
    goals = {
        "capture_rows_per_s": 1_000_000, "blackhole_rows_per_s": 400_000, "kafka_rows_per_s": 150_000,
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
def profile(
    rows: Annotated[int, typer.Option(help="Row changes to capture and encode.")] = 500_000,
    as_json: terminal.AsJson = False,
) -> None:
    """Where the time goes, stage by stage, in microseconds a row."""
    from tidemill.lab.bench.profile import profile_postgres

    result = profile_postgres(rows)
    if as_json:
        terminal.show_json(result)
        return
    terminal.show_table(
        ["stage", "µs/row", "share"],
        [(s["stage"], f"{s['us_per_row']:.3f}", f"{s['share']:.0%}") for s in result["stages"]],
        title=f"{result['rows']:,} row changes of an 8-column table, one core",
    )
