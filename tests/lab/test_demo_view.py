"""The demo's screen, without a demo."""

from __future__ import annotations

from pathlib import Path

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
