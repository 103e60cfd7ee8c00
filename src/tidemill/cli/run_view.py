"""How `tidemill run` shows its pipelines: a live table, or lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from types import TracebackType

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidemill.disk.output import lock_output
from tidemill.service.status import PipelineStatus, SinkState, SinkStatus, State
from tidemill.service.units import human_bytes

_STYLE = {State.RUNNING: "green", State.FAILING: "red", State.FAILED: "bold red", State.STOPPING: "yellow"}
# Of one pipeline, below the table: more would push the table off the screen.
_NOTICES = 3
_SINK_STYLE = {SinkState.OK: "green", SinkState.FAILING: "red", SinkState.FAILED: "bold red"}


class LiveTable:
    """One row a pipeline, redrawn in place; errors below it."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), refresh_per_second=8, transient=False)
        self._began: set[str] = set()

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, statuses: list[PipelineStatus]) -> None:
        for status in statuses:
            if status.began and status.name not in self._began:
                self._began.add(status.name)
                self._live.console.print(Text(_began(status)))
        self._live.update(_table(statuses))


class LineView:
    """A line a pipeline: when its state or stage changes, and every `interval` seconds."""

    def __init__(self, interval: float, *, as_json: bool) -> None:
        self._interval, self._as_json = interval, as_json
        self._shown: dict[str, tuple[float, tuple[str, ...]]] = {}

    def show(self, statuses: list[PipelineStatus]) -> None:
        now = time.monotonic()
        for status in statuses:
            looks = (
                status.began, status.state, status.stage, status.error.get("what", ""),
                *(sink.state for sink in status.sinks),
                *map(_named, status.notices),
            )  # fmt: skip
            at, before = self._shown.get(status.name, (0.0, ()))
            if looks != before or now - at >= self._interval:
                self._shown[status.name] = (now, looks)
                if self._as_json:
                    _say(orjson.dumps(asdict(status)).decode())
                    continue
                if status.began and before[:1] != (status.began,):
                    _say(_began(status))
                for notice in status.notices:
                    if _named(notice) not in before:
                        _say(f"{status.name} {_as_line(notice)}")
                _say(_line(status))


def _say(line: str) -> None:
    """A line that stays whole beside those of a `stdout` sink."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # no file, as in a test
        print(line, flush=True)
        return
    with lock_output(output):
        print(line, flush=True)


def _named(notice: Mapping[str, str]) -> str:
    return f"{notice['code']} {notice['subject']}"


def _as_line(notice: Mapping[str, str]) -> str:
    return f"{notice['code']} {notice['subject']}: {notice['what'].rstrip('.')}. {notice['fix']}"


def _began(status: PipelineStatus) -> str:
    return f"{status.name} {'resumes after' if status.resumed else 'begins at'} {status.began}"


def _table(statuses: list[PipelineStatus]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pipeline", overflow="fold")
    for name in ("state", "stage"):
        table.add_column(name, no_wrap=True, min_width=len(State.STOPPING))
    for name in ("events", "events/s", "lag events", "lag s", "lag bytes", "batch ms"):
        table.add_column(name, justify="right")
    table.add_column("sinks", overflow="fold")
    for s in statuses:
        sinks = Text(" ").join(Text(_sink(k), style=_SINK_STYLE[k.state]) for k in s.sinks)
        table.add_row(
            s.name, Text(s.state, style=_STYLE.get(s.state, "")), s.stage,
            f"{s.events:,}", f"{s.events_per_second:,.0f}",
            f"{s.lag_events:,}", f"{s.lag_seconds:.1f}", _bytes(s), f"{s.batch_seconds * 1000:.0f}", sinks,
        )  # fmt: skip
    return Group(table, *(line for s in statuses for line in _below(s)))


def _below(s: PipelineStatus) -> Iterator[Text]:
    """What needs words, as wide as the screen."""
    if s.error:
        yield Text(f"{s.name}: {s.error['what']}", style="red")
    for sink in s.sinks:
        if sink.error and sink.error.splitlines()[0] not in s.error.get("what", ""):
            yield Text(f"{s.name}: sink {sink.id} is {sink.state}: {sink.error.splitlines()[0]}", style="red")
    for notice in s.notices[:_NOTICES]:
        yield Text(f"{s.name}: {_as_line(notice)}", style="yellow")
    if len(s.notices) > _NOTICES:
        yield Text(f"{s.name}: and {len(s.notices) - _NOTICES} more, which `tidemill doctor` shows", style="yellow")


def _line(s: PipelineStatus) -> str:
    sinks = " ".join(f"{k.id}:{k.state}{_behind(k)}" for k in s.sinks)
    text = (
        f"{s.name} {s.state} {s.stage} events={s.events} rate={s.events_per_second:.0f}/s lag={s.lag_events}ev "
        f"{s.lag_seconds:.1f}s {_bytes(s)} batch={s.batch_seconds * 1000:.0f}ms {sinks}"
    )
    text += "".join(f" {notice['code']}: {notice['subject']}" for notice in s.notices)
    return f"{text} error: {s.error['what']}" if s.error else text


def _sink(sink: SinkStatus) -> str:
    state = "" if sink.state is SinkState.OK else f" {sink.state}"
    return f"{sink.id}{state}{_behind(sink)}"


def _behind(sink: SinkStatus) -> str:
    """Only what is worth a look: a sink that lags the pipeline by itself, dead letters, events lost to it."""
    parts = [f"-{sink.lag_events}ev"] if sink.lag_events and (sink.error or not sink.waited_for) else []
    parts += [f"{sink.dead_letters} dead letters"] if sink.dead_letters else []
    parts += [f"{sink.lost} lost"] if sink.lost else []
    return f"({', '.join(parts)})" if parts else ""


def _bytes(s: PipelineStatus) -> str:
    return "-" if s.lag_bytes is None else human_bytes(s.lag_bytes)
