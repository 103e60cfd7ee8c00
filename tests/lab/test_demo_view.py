"""The demo's screen, without a demo."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.console import Console

from tidemill.lab.arrivals import Arrivals
from tidemill.lab.demo_view import View
from tidemill.lab.shop import KEYS
from tidemill.lab.sqlite_shop import SqliteShop


def test_the_screen_moves_while_nothing_has_arrived_yet(tmp_path: Path) -> None:
    view = View(SqliteShop(tmp_path / "shop.db"), Arrivals(tmp_path / "files", KEYS), "SQLite", stage="Spark starts")
    times = iter((0.0, 0.25, 0.5))
    console = Console(get_time=lambda: next(times), width=80)
    shown = []
    for _ in range(3):
        with console.capture() as captured:
            console.print(view.frame())
        shown.append(captured.get())
    assert all("Spark starts" in frame for frame in shown)
    assert len(set(shown)) == 3


def test_no_average_is_above_the_best_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most events came within the last part of a second, and some before the clock began."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    arrivals = Arrivals(tmp_path / "files", KEYS)
    view = View(SqliteShop(tmp_path / "shop.db"), arrivals, "SQLite")
    arrivals.events["orders", "insert"] = 900
    clock[0] = 101.0
    assert view.begin() == 900
    for clock[0], arrivals.events["orders", "insert"] in ((102.0, 1000), (103.5, 1000)):
        view.tick()
    clock[0], arrivals.events["orders", "insert"] = 104.0, 3000
    peak, average = view.end()
    assert (peak, average) == (1000, 700.0)  # 2,000 in the last two seconds; 2,100 in all three
