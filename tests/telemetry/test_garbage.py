"""Collections of a process with many objects stay short, and nothing is left out of them for ever."""

from __future__ import annotations

import gc

from tidemill.telemetry.garbage import ShortCollections, short_collections


class Collector:
    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []
        self.heard = ShortCollections(
            clock=lambda: self.now, freeze=lambda: self.done.append("freeze"),
            unfreeze=lambda: self.done.append("unfreeze"),
        )  # fmt: skip

    def collect(self, seconds: float, generation: int = 2) -> list[str]:
        self.done.clear()
        self.heard.hear("start", {"generation": generation})
        self.now += seconds
        self.heard.hear("stop", {"generation": generation, "collected": 0, "uncollectable": 0})
        return self.done


def test_what_survived_a_long_collection_is_left_out_of_the_next_ones() -> None:
    collector = Collector()
    assert collector.collect(0.01) == []
    assert collector.collect(0.4) == ["freeze"]
    assert collector.collect(0.4, generation=1) == [], "those look at few objects"


def test_everything_is_looked_at_again_from_time_to_time() -> None:
    collector = Collector()
    assert collector.collect(0.4) == ["freeze"]
    collector.now += 1790.0
    assert collector.collect(0.01) == []
    collector.now += 20.0
    assert collector.collect(0.01) == ["unfreeze"]
    assert collector.collect(0.4) == ["freeze"]


def test_a_process_has_pythons_own_way_again_afterwards() -> None:
    before = len(gc.callbacks)
    with short_collections():
        assert len(gc.callbacks) == before + 1
        gc.freeze()
    assert len(gc.callbacks) == before
    assert gc.get_freeze_count() == 0


def test_an_object_without_cycles_goes_at_once_all_the_same() -> None:
    class Held:
        def __del__(self) -> None:
            gone.append(True)

    gone: list[bool] = []
    held = Held()
    with short_collections():
        gc.collect()
        gc.freeze()
        assert not gone
        del held
        assert gone
