"""The bench's result for people: a table with what is to be reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.cli import terminal

#: key, what it says, the goal as text, and whether a value reaches it
GOALS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("ratio_blackhole", "end to end to blackhole / pg_recvlogical", "≥ 1.9", lambda v: v >= 1.9),
    ("ratio_kafka", "end to end to Kafka / pg_recvlogical", "≥ 1.3", lambda v: v >= 1.3),
    ("capture_us_per_row", "capture CPU, µs a row", "≤ 1.5", lambda v: v <= 1.5),
    ("capture_peak_rss_mb", "capture peak memory, MB (large transaction included)", "≤ 400", lambda v: v <= 400),
    ("latency_p50_ms", "commit to delivery at 1,000 events/s, p50 ms", "≤ 400", lambda v: v <= 400),
)


def show(result: dict[str, Any]) -> None:
    rows = []
    for key, what, goal, reached in GOALS:
        value = result.get(key)
        if value is not None:
            rows.append((what, f"{value:,}", goal, "yes" if reached(value) else "no"))
    terminal.show_table(
        ["measure", "value", "goal", "reached"], rows, title=f"{result['server']}, {result['rows']:,} rows"
    )
    rest = ("mode", "baseline_rows_per_s", "blackhole_rows_per_s", "kafka_rows_per_s", "worker_us_per_row",
            "jvm_us_per_row", "driver_us_per_row", "kafka_us_per_row")  # fmt: skip
    for key in (*rest, "latency_p99_ms", "kafka", "batches", "peak_rss_mb", "seconds"):
        if result.get(key) is not None:
            terminal.say(f"{key}: {result[key]}")


def show_soak(result: dict[str, Any], title: str) -> None:
    terminal.show_table(
        ["seconds", "phase", "rows", *sorted(result["samples"][0]["mb"]), "largest worker", "all, MB"],
        [
            (one["at"], one["phase"], f"{one['rows']:,}", *(value for _, value in sorted(one["mb"].items())),
             one["largest_worker_mb"], one["total_mb"])
            for one in result["samples"]
        ],
        title=title,
    )  # fmt: skip


def show_server(result: dict[str, Any]) -> None:
    goals = {"throughput_ratio": "≥ 0.97", "api_p99_ms": "≤ 100"}
    terminal.show_table(
        ["measure", "value", "goal"],
        [(key, value if isinstance(value, str) else f"{value:,}", goals.get(key, "")) for key, value in result.items()],
    )


def show_profile(result: dict[str, Any]) -> None:
    terminal.show_table(
        ["stage", "µs/row", "share"],
        [(s["stage"], f"{s['us_per_row']:.3f}", f"{s['share']:.0%}") for s in result["stages"]],
        title=f"{result['rows']:,} row changes of an 8-column table, one core",
    )
