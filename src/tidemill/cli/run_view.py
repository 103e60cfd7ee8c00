"""How `tidemill run` shows its pipelines: a live table, or lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tidemill.cli.snapshot_view import RowRates, bar
from tidemill.cli.terminal import plain
from tidemill.disk.output import lock_output
from tidemill.service.run.start_profile import StartStage
from tidemill.service.run.status import PipelineStatus, SinkState, SinkStatus, State
from tidemill.service.units import human_bytes
from tidemill.telemetry.plain_text import without_controls

_STYLE = {State.RUNNING: "green", State.FAILING: "red", State.FAILED: "bold red", State.STOPPING: "yellow"}
# Of one pipeline, below the table: more would push the table off the screen.
_NOTICES = 3
_TABLES = 5
_SINK_STYLE = {SinkState.OK: "green", SinkState.FAILING: "red", SinkState.FAILED: "bold red"}


class LiveTable:
    """One row a pipeline, redrawn in place; errors below it."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), refresh_per_second=8, transient=False)
        self._began: set[str] = set()
        self._rates = RowRates()

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """What goes on before there is a table, or beside it."""
        if self._began:
            self._live.console.print(plain(text))
        else:
            self._live.update(Spinner("dots", plain(f" {text}"), style="cyan"), refresh=True)

    def show(self, statuses: list[PipelineStatus]) -> None:
        for status in statuses:
            if status.began and status.name not in self._began:
                self._began.add(status.name)
                self._live.console.print(Text(_began(status)))
        self._live.update(_table(statuses, self._rates))

    def show_start(self, stages: Sequence[StartStage]) -> None:
        for line in _start_lines(stages):
            self._live.console.print(Text(line))


class LineView:
    """A line a pipeline: when its state or stage changes, and every `interval` seconds."""

    def __init__(self, interval: float, *, as_json: bool) -> None:
        self._interval, self._as_json = interval, as_json
        self._shown: dict[str, tuple[float, tuple[str, ...]]] = {}

    def say(self, text: str) -> None:
        """For people: programs read a status a line."""
        if not self._as_json:
            _say_text(text)

    def show(self, statuses: list[PipelineStatus]) -> None:
        now = time.monotonic()
        for status in statuses:
            looks = (
                status.began, status.state, _stage(status), status.error.get("what", ""),
                *(sink.state for sink in status.sinks),
                *(table.state for table in status.tables),
                *map(_label, status.notices),
            )  # fmt: skip
            at, before = self._shown.get(status.name, (0.0, ()))
            if looks != before or now - at >= self._interval:
                self._shown[status.name] = (now, looks)
                if self._as_json:
                    _say(orjson.dumps(asdict(status)).decode())
                    continue
                if status.began and before[:1] != (status.began,):
                    _say_text(_began(status))
                for notice in status.notices:
                    if _label(notice) not in before:
                        _say_text(f"{status.name} {_as_line(notice)}")
                _say_text(_line(status))

    def show_start(self, stages: Sequence[StartStage]) -> None:
        if self._as_json:
            _say(orjson.dumps({"start": [asdict(stage) for stage in stages]}).decode())
            return
        for line in _start_lines(stages):
            _say_text(line)


def _start_lines(stages: Sequence[StartStage]) -> Iterator[str]:
    """Of `--profile-start`: seconds since the process began, then how many seconds the stage took."""
    parts = max((len(each.part) for each in stages), default=0)
    for each in stages:
        yield f"{each.begin:6.2f} s  {each.part:<{parts}}  {each.stage:<16}{each.seconds:6.2f} s"


def _say_text(text: str) -> None:
    _say(without_controls(text))


def _say(line: str) -> None:
    """A line that stays whole beside those of a `stdout` sink."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # no file, as in a test
        print(line, flush=True)
        return
    with lock_output(output):
        print(line, flush=True)


def _label(notice: Mapping[str, str]) -> str:
    return f"{notice['code']} {notice['subject']}"


def _as_line(notice: Mapping[str, str]) -> str:
    return f"{notice['code']} {notice['subject']}: {notice['what'].rstrip('.')}. {notice['fix']}"


def _began(status: PipelineStatus) -> str:
    return f"{status.name} {'resumes after' if status.resumed else 'begins at'} {status.began}"


def _table(statuses: list[PipelineStatus], rates: RowRates) -> Group:
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
            s.name, Text(s.state, style=_STYLE.get(s.state, "")), _stage(s),
            f"{s.events:,}", f"{s.events_per_second:,.0f}",
            f"{s.lag_events:,}", f"{s.lag_seconds:.1f}", _bytes(s), f"{s.batch_seconds * 1000:.0f}", sinks,
        )  # fmt: skip
    return Group(table, *(line for s in statuses for line in _below(s, rates)))


def _below(s: PipelineStatus, rates: RowRates) -> Iterator[Text]:
    """What needs words, as wide as the screen."""
    if s.state in (State.STOPPING, State.STOPPED):
        yield plain(f"{s.name}: {_rest(s)}", style="yellow")
    going = [t for t in s.tables if t.state not in ("ready", "failed")]
    for table in going[:_TABLES]:
        rate, left = rates.of(s.name, table)
        speed = (f", {rate} rows/s" if rate else "") + (f", {left} left" if left else "")
        yield plain(f"{s.name}: {bar(table)} {table.name} {table.state}, {table.rows:,} rows{speed}")
    if len(going) > _TABLES:
        yield plain(f"{s.name}: and {len(going) - _TABLES} more tables to copy, which `tidemill snapshot status` shows")
    for table in s.tables:
        if table.state == "failed":
            yield plain(f"{s.name}: {table.name} is not copied: {table.error} {table.fix}", style="red")
    if s.error:
        yield plain(f"{s.name}: {s.error['what']}", style="red")
    for sink in s.sinks:
        if sink.error and sink.error.splitlines()[0] not in s.error.get("what", ""):
            yield plain(f"{s.name}: sink {sink.id} is {sink.state}: {sink.error.splitlines()[0]}", style="red")
    for notice in s.notices[:_NOTICES]:
        yield plain(f"{s.name}: {_as_line(notice)}", style="yellow")
    if len(s.notices) > _NOTICES:
        yield plain(f"{s.name}: and {len(s.notices) - _NOTICES} more, which `run --json` prints", style="yellow")


def _stage(s: PipelineStatus) -> str:
    """Capture may be at its work long before the sinks' lanes are: then nothing is delivered yet."""
    if s.state is State.STOPPED:
        return ""
    return "starting" if s.stage == "cdc" and s.state is State.RUNNING and not s.lanes_stand else s.stage


def _rest(s: PipelineStatus) -> str:
    """How far a stop has come."""
    if s.state is State.STOPPED:
        left = f"{s.lag_events:,} left for the next" if s.lag_events else "none left"
        return f"{s.events:,} events delivered in this run, {left}"
    if s.lag_events:
        return f"{s.lag_events:,} events left to deliver; {s.events:,} delivered in this run"
    return f"everything is delivered ({s.events:,} events in this run), the last batch is noted"


def _line(s: PipelineStatus) -> str:
    sinks = " ".join(f"{k.id}:{k.state}{_lag(k)}" for k in s.sinks)
    if s.state in (State.STOPPING, State.STOPPED) and not s.error:
        return f"{s.name} {s.state}: {_rest(s)} {sinks}"
    text = (
        f"{s.name} {s.state} {_stage(s)} events={s.events} rate={s.events_per_second:.0f}/s lag={s.lag_events}ev "
        f"{s.lag_seconds:.1f}s {_bytes(s)} batch={s.batch_seconds * 1000:.0f}ms {sinks}"
    )
    if any(t.state != "ready" for t in s.tables):
        ready = sum(t.state == "ready" for t in s.tables)
        text += f" snapshot={ready}/{len(s.tables)}tables {sum(t.rows for t in s.tables)}rows"
    text += "".join(f" {notice['code']}: {notice['subject']}" for notice in s.notices)
    return f"{text} error: {s.error['what']}" if s.error else text


def _sink(sink: SinkStatus) -> str:
    state = "" if sink.state is SinkState.OK else f" {sink.state}"
    return f"{sink.id}{state}{_lag(sink)}"


def _lag(sink: SinkStatus) -> str:
    """Only what is worth a look: a sink that lags the pipeline by itself, dead letters, events lost to it."""
    parts = [f"-{sink.lag_events}ev"] if sink.lag_events and (sink.error or not sink.waited_for) else []
    parts += [f"{sink.dead_letters} dead letters"] if sink.dead_letters else []
    parts += [f"{sink.lost} lost"] if sink.lost else []
    return f"({', '.join(parts)})" if parts else ""


def _bytes(s: PipelineStatus) -> str:
    return "-" if s.lag_bytes is None else human_bytes(s.lag_bytes)
