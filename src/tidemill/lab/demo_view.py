"""How the demo looks: one frame that fits 80 by 24 while it runs, a page to read when it is over."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tidemill.lab.arrivals import Arrivals, Event
from tidemill.lab.shop import KEYS, Shop
from tidemill.lab.sqlite_shop import SqliteShop

_BARS = " ▁▂▃▄▅▆▇█"
_SIGNS = {"insert": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}
_RECENT = 8
_HISTORY = 56


@dataclass
class View:
    """State of the screen. `tick` once a second keeps the history of the rate."""

    shop: Shop | SqliteShop
    arrivals: Arrivals
    versions: str
    stage: str = ""
    done: list[str] = field(default_factory=list)
    start: float = 0.0
    rates: deque[int] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _windows: list[tuple[int, float]] = field(default_factory=list)  # events and seconds, since `begin`
    _last_total: int = 0
    _last_tick: float = field(default_factory=time.monotonic)
    _spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))  # one, or it never turns

    def begin(self) -> int:
        """From here on speed is measured. Says how many events arrived before."""
        self.tick()
        self._windows.clear()
        self.start = self._last_tick
        return self._last_total

    def tick(self) -> None:
        now = time.monotonic()
        self._windows.append((self.arrivals.total - self._last_total, now - self._last_tick))
        self._last_total, self._last_tick = self.arrivals.total, now
        events, seconds = self._windows[-1]
        self.rates.append(round(events / max(seconds, 1.0)))

    def end(self) -> tuple[int, float]:
        """Events of the best second since `begin`, and of all on average. A rest of less than a second belongs to the
        one before it: every moment counts in one of them, so that no average is above the best."""
        self.tick()
        if len(self._windows) > 1 and self._windows[-1][1] < 1:
            (events, seconds), (before, earlier) = self._windows.pop(), self._windows.pop()
            self._windows.append((events + before, seconds + earlier))
        best = max(events / max(seconds, 1e-9) for events, seconds in self._windows)
        total, elapsed = (sum(column) for column in zip(*self._windows, strict=True))
        return math.ceil(best), round(total / max(elapsed, 1e-9), 1)

    def frame(self) -> RenderableType:
        if not self.arrivals.total:
            steps: list[RenderableType] = [Text.assemble(("  ✓ ", "green"), step) for step in self.done]
            self._spinner.update(text=Text(f" {self.stage}"))
            return Group(self._title(), *steps, self._spinner)
        return Group(self._title(), self._counts(), self._rate(), Rule(style="dim"), *self._recent())

    def line(self) -> str:
        """The same as one line, for when there is no terminal."""
        rate = self.rates[-1] if self.rates else 0
        last = describe(self.arrivals.latest[-1]).plain if self.arrivals.latest else ""
        return (
            f"{self.elapsed:4.0f} s  committed {self.shop.committed.total():>7,}  "
            f"arrived {self.arrivals.total:>7,}  {rate:>6,}/s  {last}"
        )[:120]

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start if self.start else 0.0

    def _title(self) -> RenderableType:
        clock = f"   {self.elapsed:.0f} s" if self.start else ""
        title = Text.assemble(("Tidemill demo", "bold cyan"), f"   {self.versions}", (clock, "dim"))
        return Group(title, Text("shop ──▶ capture ──▶ change log ──▶ Spark ──▶ files", style="dim"), Text())

    def _counts(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("table", width=14)
        for name in ("committed", "arrived", "inserts", "updates", "deletes"):
            table.add_column(name, justify="right", width=10)
        for name in KEYS:
            arrived = [self.arrivals.events[name, op] for op in _SIGNS]
            committed = sum(self.shop.committed[name, op] for op in _SIGNS)
            table.add_row(name, *(f"{n:,}" for n in (committed, sum(arrived), *arrived)))
        table.add_row("all", f"{self.shop.committed.total():,}", f"{self.arrivals.total:,}", style="bold")
        return table

    def _rate(self) -> Text:
        top = max([*self.rates, 1])
        bars = "".join(_BARS[round(rate / top * (len(_BARS) - 1))] for rate in self.rates)
        delay = self.arrivals.delay()
        now = f" {self.rates[-1] if self.rates else 0:,}/s"
        return Text.assemble("\n", (bars, "cyan"), (now, "bold"), f"   {delay:.1f} s lag" if delay else "")

    def _recent(self) -> list[Text]:
        return [describe(event) for event in list(self.arrivals.latest)[-_RECENT:]]


def describe(event: Event, width: int = 78) -> Text:
    """An event in one line: what happened to which row, and what it is now."""
    sign, style = _SIGNS.get(event["op"], ("·", "white"))
    image: dict[str, Any] = event.get("after") or event.get("before") or {}
    values = "  ".join(f"{name}={value}" for name, value in image.items() if value is not None)
    line = Text.assemble((f"{sign} ", style), (f"{event['table'].rpartition('.')[2]:<12}", style), values)
    line.truncate(width, overflow="ellipsis")
    return line


def summary(view: View, facts: dict[str, Any]) -> RenderableType:
    """The last page. `facts` is what `--json` prints."""
    check = ("✓ ", "green") if facts["equal"] else ("✗ ", "red")
    verdict = (
        "replayed into tables, the files equal the database row by row"
        if facts["equal"]
        else f"{facts['differences']} rows differ between the files and the database: please report this"
    )
    rolled = f"{facts['rolled_back']} transactions were rolled back; nothing of them arrived" if facts["equal"] else ""
    lines = [
        Text.assemble("", (f"{facts['events']:,} events", "bold"),
                      f", all but the first {facts['first_events']:,} in {facts['seconds']:.0f} s",
                      f" ({facts['events_per_second']:,.0f}/s, at most {facts['peak_events_per_second']:,}/s)"),
        Text(f"{facts['transactions']:,} transactions of 4 tables, {facts['files']:,} files, {facts['bytes']:,} bytes"),
        Text(f"half of the events were on disk {facts['delay_seconds']:.2f} s after their commit"),
        Text.assemble(check, verdict),
    ]  # fmt: skip
    if rolled:
        lines.append(Text.assemble(check, rolled))
    lines += [Text(), Text("Try next", style="bold"), *(Text(f"  {line}") for line in facts["next"])]
    return Group(view._title(), view._counts(), Text(), *lines)
