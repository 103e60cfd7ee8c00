"""The command `bench lanes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import terminal


def lanes(
    rows: Annotated[int, typer.Option(help="Events to blackhole; a fifth of them to HTTP.")] = 500_000,
    rounds: Annotated[int, typer.Option(help="Alternating runs; the median counts.")] = 3,
    count: Annotated[list[int] | None, typer.Option(help="Lanes, again for more; 1, 2, 4.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of it here (.svg or .png).")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """What more lanes bring, to a sink that encodes or waits.

    A prepared log through Spark in micro-batches, to blackhole and to an HTTP server that answers late."""
    from tidemill.lab.bench.lanes import LanesBench
    from tidemill.lab.bench.plots import save_lanes
    from tidemill.stream.spark.session import create_session, warm_up

    counts = sorted(count or [1, 2, 4])
    bench = LanesBench(
        rows=rows, rounds=rounds, lanes=counts, say=(lambda text: None) if as_json else terminal.say
    )  # fmt: skip
    spark = create_session("tidemill bench", master=f"local[{counts[-1]}]")
    try:
        warm_up(spark)
        result = bench.run(spark)
    finally:
        spark.stop()
    if plot is not None:
        save_lanes(result, plot)
    if as_json:
        terminal.show_json(result)
        return
    terminal.show_table(
        ["lanes", *result["lanes"]],
        [(number, *(f"{rates[str(number)]:,}" for rates in result["lanes"].values())) for number in counts],
        title="events/s",
    )
