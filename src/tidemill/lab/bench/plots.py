"""Pictures of what the benches measured, for `--plot`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_GREY, _TEAL, _ORANGE = "#8d99ae", "#1f7a8c", "#bf5700"
_SINKS = {"blackhole": _GREY, "kafka": _ORANGE, "postgres": _TEAL, "redis": "#7b4b94"}
_PARTS = {"capture": "capture", "workers": "worker", "jvm": "jvm", "driver": "driver"}
_HOPS = {
    "commit_to_logged": ("server, decoding, log", _GREY),
    "logged_to_taken": ("noticed, pinned", "#e0b252"),
    "taken_to_delivered": ("encoded, acknowledged by the sink", _TEAL),
    "delivered_to_saved": ("checkpoint", _ORANGE),
}


@contextmanager
def _figure(path: Path, columns: int, **options: Any) -> Iterator[Any]:
    """Axes beside each other, without frames, written to the path at the end."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, squeeze=False, **options)
    yield axes[0]
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def save_throughput(result: dict[str, Any], path: Path) -> None:
    """Rows a second per destination with every run as a dot, and CPU a row by process and destination."""
    names = {
        "baseline": "pg_recvlogical\n→ /dev/null",
        "blackhole": "tidemill\n→ blackhole",
        "kafka": "tidemill\n→ Kafka",
    }
    kinds = [kind for kind in names if kind in result["seconds"]]
    with _figure(path, 2, figsize=(9, 3.4), width_ratios=(3, 2)) as (left, right):
        medians = [result[f"{kind}_rows_per_s"] for kind in kinds]
        left.bar([names[kind] for kind in kinds], medians, color=[_GREY, _TEAL, _ORANGE][: len(kinds)], width=0.55)
        for x, kind in enumerate(kinds):
            seconds = result["seconds"][kind]
            left.scatter([x] * len(seconds), [result["rows"] / s for s in seconds], color="black", s=12, zorder=3)
        left.set_ylabel("row changes a second")
        left.yaxis.set_major_formatter("{x:,.0f}")
        left.set_title(f"Same WAL, same run, {result['mode']}; bars are medians", fontsize=10)
        own = {part: result[f"{key}_us_per_row"] for part, key in _PARTS.items()}
        by_kind = {"blackhole": own, "kafka": result["kafka_us_per_row"] if "kafka" in kinds else None}
        shown = {kind: parts for kind, parts in by_kind.items() if parts}
        height = 0.7 / len(shown)
        for number, (kind, parts) in enumerate(shown.items()):
            places = [at + height * (number - (len(shown) - 1) / 2) for at in range(len(_PARTS))]
            values = [parts[part] for part in _PARTS]
            right.barh(places, values, height, color=_TEAL if kind == "blackhole" else _ORANGE, label=f"to {kind}")
        right.set_yticks(range(len(_PARTS)), ["JVM" if part == "jvm" else part for part in _PARTS])
        right.invert_yaxis()
        right.set_xlabel("CPU µs a row")
        right.set_title("Where the CPU goes", fontsize=10)
        right.legend(fontsize=8, frameon=False)


def save_scale(result: dict[str, Any], path: Path) -> None:
    """Rows a second by the number of tasks, beside the discarded copy with as many connections."""
    servers = [prefix for prefix in ("", "mysql_") if f"{prefix}scale" in result]
    with _figure(path, len(servers), figsize=(4.5 * len(servers), 3.4)) as axes:
        for axis, prefix in zip(axes, servers, strict=True):
            scale = result[f"{prefix}scale"]
            tasks = [int(number) for number in scale]
            for key, label, colour in (
                ("copy_rows_per_s", "the server's client, thrown away", _GREY),
                ("rows_per_s", "tidemill, into the log", _TEAL),
            ):
                axis.plot(tasks, [each[key] for each in scale.values()], "o-", label=label, color=colour)
            axis.set_title(f"{result[f'{prefix}server']}, {result[f'{prefix}rows']:,} rows", fontsize=10)
            axis.set_xlabel("tasks, connections")
            axis.set_ylabel("rows a second")
            axis.set_xticks(tasks)
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=8, frameon=False)


def save_latency(result: dict[str, Any], path: Path) -> None:
    """Percentiles by rate, a line a sink; and the hops of an event's way at the highest rate. Of the first mode."""
    mode = result["measured"][0]["mode"]
    measured = [one for one in result["measured"] if one["mode"] == mode]
    sinks = list(dict.fromkeys(one["sink"] for one in measured))
    with _figure(path, 2, figsize=(10, 3.6)) as (left, right):
        for sink in sinks:
            mine = [one for one in measured if one["sink"] == sink]
            rates = [one["rate"] for one in mine]
            for percentile, line in (("p50", "o-"), ("p99", "o:")):
                values = [one["total"][percentile] for one in mine]
                label = sink if percentile == "p50" else None
                left.plot(rates, values, line, color=_SINKS.get(sink, "black"), label=label, markersize=4)
        left.set_xscale("log")
        left.set_xticks(sorted({one["rate"] for one in measured}))
        left.xaxis.set_major_formatter("{x:,.0f}")
        left.minorticks_off()
        left.set_ylim(bottom=0)
        left.set_xlabel("events a second")
        left.set_ylabel("ms from commit to checkpoint")
        left.set_title(f"p50 (lines) and p99 (dotted), {mode}", fontsize=10)
        left.legend(fontsize=8, frameon=False)
        last = [
            max((one for one in measured if one["sink"] == sink), key=lambda one: int(one["rate"])) for sink in sinks
        ]
        starts = [0.0] * len(last)
        for hop, (label, colour) in _HOPS.items():
            widths = [one[hop]["p50"] for one in last]
            right.barh([one["sink"] for one in last], widths, left=starts, color=colour, label=label, height=0.5)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        right.set_xlabel(f"ms, the p50 of each hop, at {last[0]['rate']:,} events a second")
        right.set_title("Stages of an event's way", fontsize=10)
        right.invert_yaxis()
        right.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
