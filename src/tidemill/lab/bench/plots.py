"""Pictures of what the benches measured, for `--plot`: one function for each bench's JSON.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; lines also differ in their markers.
The ground is white, so that a picture can be read on a dark page too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_GREY, _BLUE, _ORANGE, _GREEN = "#999999", "#0072b2", "#e69f00", "#009e73"
_VERMILION, _SKY, _PURPLE = "#d55e00", "#56b4e9", "#cc79a7"
#: colour and marker of a line
_SINKS = {
    "blackhole": (_GREY, "o"), "kafka": (_VERMILION, "s"), "postgres": (_BLUE, "^"), "redis": (_PURPLE, "D"),
    "http": (_GREEN, "v"),
}  # fmt: skip
_MODES = {"real_time": "real time", "micro_batch": "micro-batches"}
_PERCENTILES = {"p50": "p50", "p99": "p99", "p99_9": "p99.9"}
_LEGEND_COLUMNS = 4  # more would stand beyond the edges
_PARTS = {"capture": "capture", "workers": "worker", "jvm": "jvm", "driver": "driver"}
#: steps of an event's way (`lab/bench/latency/steps.py`) that are drawn as one
_STEPS = {
    "sent by the server": (("sent",), _GREY),
    "read and decoded": (("read", "decoded"), _SKY),
    "in the log": (("logged",), _GREEN),
    "noticed": (("noticed",), _ORANGE),
    "pinned": (("pinned",), _PURPLE),
    "at the lane, loaded, encoded": (("dispatched", "loaded", "encoded"), _BLUE),
    "acknowledged by the sink": (("answered",), _VERMILION),
    "back, checkpoint": (("returned", "saved"), "black"),
}
_HOPS = {
    "server, decoding, log": (("commit_to_logged",), _GREY),
    "noticed, pinned": (("logged_to_taken",), _ORANGE),
    "encoded, acknowledged by the sink": (("taken_to_delivered",), _BLUE),
    "checkpoint": (("delivered_to_saved",), _VERMILION),
}


@contextmanager
def _figure(path: Path, width: float, rows: Mapping[float, int]) -> Iterator[list[list[Any]]]:
    """Rows of axes, each with its height in inches and how many stand beside each other, written to the path at the
    end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Words stay words; and the same numbers give the same bytes.
    style = {"svg.fonttype": "none", "svg.hashsalt": "tidemill", "font.size": 9, "axes.titlesize": 10}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(width, sum(rows)), layout="constrained", facecolor="white")
        parts = figure.subfigures(len(rows), 1, height_ratios=list(rows), squeeze=False)[:, 0]
        axes = [
            list(part.subplots(1, count, squeeze=False)[0]) for part, count in zip(parts, rows.values(), strict=True)
        ]
        yield axes
        for axis in (axis for row in axes for axis in row):
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_axisbelow(True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def save_throughput(result: dict[str, Any], path: Path) -> None:
    """Rows a second by destination and mode with every run as a dot, and CPU a row by process and destination, of the
    first mode."""
    kinds = list(result["seconds"])
    with _figure(path, 10.5, {3.6: 2}) as [[left, right]]:
        for y, kind in enumerate(kinds):
            mode, sink = _mode_and_sink(kind, result["mode"])
            colour = "black" if kind == "baseline" else _SINKS[sink][0]
            later = mode != result["mode"]
            speed = result[f"{kind}_rows_per_s"]
            fill = {"color": "white", "hatch": "//"} if later else {"color": colour}
            left.barh(y, speed, 0.6, edgecolor=colour, **fill)
            runs = [result["rows"] / seconds for seconds in result["seconds"][kind]]
            left.scatter(runs, [y + 0.42] * len(runs), color="black", s=8, zorder=3)
            left.annotate(f"{speed:,}", (speed, y), (4, 0), textcoords="offset points", va="center")
        left.set_yticks(range(len(kinds)), [_name_of(kind, result["mode"]) for kind in kinds])
        left.invert_yaxis()
        left.set_xlabel("row changes a second: medians, and each run as a dot")
        left.xaxis.set_major_formatter("{x:,.0f}")
        left.locator_params(axis="x", nbins=5)
        left.margins(x=0.15)
        left.set_title("The same WAL, drained in turns")
        own = {part: result[f"{key}_us_per_row"] for part, key in _PARTS.items()}
        by_kind = {"blackhole": own, "kafka": result["kafka_us_per_row"] if "kafka" in kinds else None}
        shown = {kind: parts for kind, parts in by_kind.items() if parts}
        height = 0.7 / len(shown)
        for number, (kind, parts) in enumerate(shown.items()):
            places = [at + height * (number - (len(shown) - 1) / 2) for at in range(len(_PARTS))]
            values = [parts[part] for part in _PARTS]
            right.bar_label(
                right.barh(places, values, height, color=_SINKS[kind][0], label=f"to {kind}"), fmt="%.2f", padding=3
            )
        right.set_yticks(range(len(_PARTS)), ["JVM" if part == "jvm" else part for part in _PARTS])
        right.invert_yaxis()
        right.margins(x=0.12)
        right.set_xlabel("CPU µs a row")
        right.set_title(f"Where the CPU goes, {_MODES[result['mode']]}")
        right.legend(frameon=False, loc="lower right")


def _mode_and_sink(kind: str, first: str) -> tuple[str, str]:
    """What `bench postgres` calls a run: a sink, with its mode before it where that is not the first one."""
    mode = next((mode for mode in _MODES if kind.startswith(f"{mode}_")), None)
    return (mode, kind.removeprefix(f"{mode}_")) if mode else (first, kind)


def _name_of(kind: str, first: str) -> str:
    if kind == "baseline":
        return "pg_recvlogical\n→ /dev/null"
    mode, sink = _mode_and_sink(kind, first)
    return f"tidemill → {sink}\n{_MODES[mode]}"


def save_scale(result: dict[str, Any], path: Path) -> None:
    """Rows a second by the number of tasks, beside the discarded copy with as many connections."""
    servers = [prefix for prefix in ("", "mysql_") if f"{prefix}scale" in result]
    with _figure(path, 4.8 * len(servers), {3.4: len(servers)}) as [axes]:
        for axis, prefix in zip(axes, servers, strict=True):
            scale = result[f"{prefix}scale"]
            tasks = [int(number) for number in scale]
            for key, label, colour, marker in (
                ("copy_rows_per_s", "the server's own client, thrown away", _GREY, "o"),
                ("rows_per_s", "tidemill, into the log", _BLUE, "s"),
            ):
                axis.plot(tasks, [each[key] for each in scale.values()], marker=marker, label=label, color=colour)
            axis.set_title(f"{result[f'{prefix}server']}, first copy")
            axis.set_xlabel("tasks, and connections to the server")
            axis.set_ylabel("rows a second")
            axis.yaxis.set_major_formatter("{x:,.0f}")
            axis.set_xticks(tasks)
            axis.set_ylim(bottom=0)
            axis.grid(axis="y", alpha=0.3)
            axis.legend(frameon=False, loc="lower right")


def save_lanes(result: dict[str, Any], path: Path) -> None:
    """Events a second by the number of lanes, a sink each, beside what so many times one lane would be."""
    measured = result["lanes"]
    with _figure(path, 4.8 * len(measured), {3.4: len(measured)}) as [axes]:
        for axis, (sink, rates) in zip(axes, measured.items(), strict=True):
            lanes = [int(number) for number in rates]
            colour, marker = _SINKS[sink]
            one = rates[str(lanes[0])]
            ideal = [one * number / lanes[0] for number in lanes]
            axis.plot(lanes, ideal, ":", color="black", label="as many times one lane")
            axis.plot(lanes, list(rates.values()), marker=marker, color=colour, label="measured")
            axis.set_title(result["titles"][sink])
            axis.set_xlabel("lanes")
            axis.set_ylabel("events a second")
            axis.yaxis.set_major_formatter("{x:,.0f}")
            axis.set_xticks(lanes)
            axis.set_ylim(bottom=0)
            axis.grid(axis="y", alpha=0.3)
            axis.legend(frameon=False, loc="upper left")


def save_latency(result: dict[str, Any], path: Path) -> None:
    """A panel each percentile by rate, a line a sink; below it a panel each rate with the steps of an event's way, its
    hops where no steps were traced. Of the first mode."""
    mode = result["measured"][0]["mode"]
    measured = [one for one in result["measured"] if one["mode"] == mode]
    sinks = list(dict.fromkeys(one["sink"] for one in measured))
    rates = sorted({one["rate"] for one in measured})
    with _figure(path, 10.5, {3.3: len(_PERCENTILES), 1.3 + 0.3 * len(sinks): len(rates)}) as [above, below]:
        for axis, percentile in zip(above, _PERCENTILES, strict=True):
            _draw_percentile(axis, percentile, measured, sinks, rates)
        least, most = min(axis.get_ylim()[0] for axis in above), max(axis.get_ylim()[1] for axis in above)
        for axis in above:
            axis.set_ylim(least, most)
        above[0].set_ylabel("ms from commit to checkpoint")
        handles, labels = above[0].get_legend_handles_labels()
        above[0].figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
        for axis, rate in zip(below, rates, strict=True):
            _draw_hops(axis, rate, [one for one in measured if one["rate"] == rate])
        most = max(axis.get_xlim()[1] for axis in below)
        for number, axis in enumerate(below):
            axis.set_xlim(0, most)
            if number:
                axis.set_yticklabels([])
        figure = below[0].figure
        figure.supxlabel("ms, the p50 of each step", fontsize=9)
        handles, labels = below[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=_LEGEND_COLUMNS)
        above[0].figure.suptitle(f"{_MODES[mode]}, {result.get('place', 'one machine')}", fontsize=10)


def _draw_percentile(
    axis: Any, percentile: str, measured: Sequence[dict[str, Any]], sinks: Sequence[str], rates: Sequence[int]
) -> None:
    for sink in sinks:
        mine = [one for one in measured if one["sink"] == sink]
        colour, marker = _SINKS[sink]
        values = [one["total"][percentile] for one in mine]
        axis.plot([one["rate"] for one in mine], values, marker=marker, markersize=5, color=colour, label=sink)
    axis.set_xscale("log")
    axis.set_yscale("log")  # one stall would hide all the rest
    axis.set_xticks(rates)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.minorticks_off()
    axis.set_xlabel("events a second")
    axis.set_title(_PERCENTILES[percentile])
    axis.grid(axis="y", alpha=0.3)


def _draw_hops(axis: Any, rate: int, measured: Sequence[dict[str, Any]]) -> None:
    starts = [0.0] * len(measured)
    traced = all(one.get("steps") for one in measured)
    for label, (names, colour) in (_STEPS if traced else _HOPS).items():
        widths = [sum((one["steps"] if traced else one)[name]["p50"] for name in names) for one in measured]
        axis.barh([one["sink"] for one in measured], widths, left=starts, color=colour, label=label, height=0.6)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axis.set_title(f"at {rate:,} events a second")
    axis.invert_yaxis()
