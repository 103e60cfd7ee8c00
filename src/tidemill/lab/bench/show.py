"""The bench's result for people: a table with what is to be reached, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.cli import terminal

#: key, what it says, the goal as text, and whether a value reaches it
GOALS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("ratio_blackhole", "end to end to blackhole / pg_recvlogical", "≥ 1.0", lambda v: v >= 1.0),
    ("ratio_kafka", "end to end to Kafka / pg_recvlogical", "≥ 0.8", lambda v: v >= 0.8),
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
    rest = ("baseline_rows_per_s", "blackhole_rows_per_s", "kafka_rows_per_s", "worker_us_per_row", "jvm_us_per_row")
    for key in (*rest, "latency_p99_ms", "kafka", "batches", "peak_rss_mb", "seconds"):
        if result.get(key) is not None:
            terminal.say(f"{key}: {result[key]}")


def save_plot(result: dict[str, Any], path: Path) -> None:
    """Rows a second per destination with every run as a dot, and CPU a row by process."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = {
        "baseline": "pg_recvlogical\n→ /dev/null",
        "blackhole": "tidemill\n→ blackhole",
        "kafka": "tidemill\n→ Kafka",
    }
    kinds = [kind for kind in names if kind in result["seconds"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2))
    medians = [result[f"{kind}_rows_per_s"] for kind in kinds]
    colours = ["#8d99ae", "#1f7a8c", "#bf5700"][: len(kinds)]
    left.bar([names[kind] for kind in kinds], medians, color=colours, width=0.55)
    for x, kind in enumerate(kinds):
        left.scatter([x] * len(result["seconds"][kind]), [result["rows"] / s for s in result["seconds"][kind]],
                     color="black", s=12, zorder=3)  # fmt: skip
    left.set_ylabel("row changes a second")
    left.set_title("Same WAL, same run; bars are medians", fontsize=10)
    parts = {"capture": "capture_us_per_row", "workers": "worker_us_per_row", "JVM": "jvm_us_per_row"}
    right.barh(list(parts), [result[key] for key in parts.values()], color="#1f7a8c", height=0.5)
    right.set_xlabel("CPU µs a row (to blackhole)")
    right.set_title("Where the CPU goes", fontsize=10)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
