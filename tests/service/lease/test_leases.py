"""Two keepers on one store: who has a lease knows until when, and who wants it waits exactly as long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.actors import wait_for
from tidemill.contracts.lease import lease_clock
from tidemill.errors import LeaseHeld, LeaseLost, StateError
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.lease.leases import LeaseKeeper
from tidemill.state import open_leases
from tidemill.state.leases import LeaseStore
from tidemill.state.migrations import Rows

SECONDS = 2.0


class CutDatabase:
    """A store that stops answering when told so."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.cut, self.where = inner, False, "cut"

    def writing(self, pipeline: str) -> AbstractContextManager[Rows]:
        return self._open(self._inner.writing(pipeline))

    def reading(self) -> AbstractContextManager[Rows]:
        return self._open(self._inner.reading())

    @contextmanager
    def _open(self, inner: AbstractContextManager[Rows]) -> Iterator[Rows]:
        if self.cut:
            raise StateError("the store does not answer")
        with inner as run:
            yield run

    def close(self) -> None:
        self._inner.close()


class Keepers:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.ended: list[str] = []
        self._made: list[LeaseKeeper] = []

    def make(self, name: str = "", *, seconds: float = SECONDS) -> tuple[LeaseKeeper, CutDatabase]:
        database = CutDatabase(open_leases(str(self._path), seconds=1)._database)
        keeper = LeaseKeeper(
            LeaseStore(database),  # type: ignore[arg-type]
            seconds=seconds,
            end_process=lambda: self.ended.append(name),
        )
        keeper.begin()
        self._made.append(keeper)
        return keeper, database

    def close(self) -> None:
        for keeper in self._made:
            keeper.close()


@pytest.fixture
def keepers(tmp_path: Path) -> Iterator[Keepers]:
    made = Keepers(tmp_path / "state.sqlite")
    yield made
    made.close()


def acquired(keeper: LeaseKeeper) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            keeper.acquire("orders")
        except LeaseHeld:
            return False
        return True

    return attempt


def test_a_lease_that_is_renewed_stays_with_its_holder(keepers: Keepers) -> None:
    (first, _), (second, _) = keepers.make(), keepers.make()
    lease = first.acquire("orders")
    began = lease.until
    wait_for(lambda: lease.until > began + SECONDS, 30, "it is not renewed")
    with pytest.raises(LeaseHeld, match="another server runs the pipeline"):
        second.acquire("orders")
    lease.check()
    first.release(lease)
    with pytest.raises(LeaseLost):
        lease.check()
    assert second.acquire("orders").epoch == 2, "given back, it is free at once"


def test_a_holder_that_is_cut_off_stops_before_another_may_take_over(keepers: Keepers) -> None:
    (first, database), (second, _) = keepers.make("first"), keepers.make("second")
    lease = first.acquire("orders")
    wait_for(lambda: second.known("orders") is not None, 10, "the second one does not see the lease")
    database.cut = True
    lost_at = list[float]()

    def taken() -> bool:
        if lease.lost and not lost_at:
            lost_at.append(lease_clock())
        return acquired(second)()

    wait_for(taken, 30, "nobody took it over")
    assert lost_at, "the first one still believed that it has the lease"
    with pytest.raises(LeaseLost, match="epoch 1"):
        lease.check()
    wait_for(lambda: keepers.ended == ["first"], 30, "what does not stop in time must end")
    database.cut = False
    with pytest.raises(LeaseHeld):
        first.acquire("orders")


def test_a_process_that_had_no_cpu_has_its_leases_again_where_nobody_took_them(keepers: Keepers) -> None:
    """Its own thread renews late as well: who asks first renews."""
    keeper, _ = keepers.make("first")
    lease = keeper.acquire("orders")
    keeper.until = lease_clock() - 0.1  # as after a pause of the whole process
    before = lease.lost
    lease.check()
    assert (before, lease.lost) == (True, False)
    assert keepers.ended == []


def test_a_lease_that_another_server_took_meanwhile_does_not_come_back(keepers: Keepers) -> None:
    (first, database), (second, _) = keepers.make("first"), keepers.make("second")
    lease = first.acquire("orders")
    wait_for(lambda: second.known("orders") is not None, 10, "the second one does not see the lease")
    database.cut = True
    wait_for(acquired(second), 30, "nobody took it over")
    database.cut = False
    first._silent = False  # the first one was frozen: no renewal failed, none was tried
    with pytest.raises(LeaseLost, match="epoch 1"):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_process_that_announced_itself_is_there_without_a_lease_until_it_is_silent_or_leaves(
    keepers: Keepers,
) -> None:
    (first, database), (second, _), (third, _) = keepers.make(), keepers.make(), keepers.make()
    assert not second.is_there(first.holder), "it has not said so"
    first.announce()
    third.announce()
    assert second.is_there(first.holder)
    since = lease_clock()
    wait_for(lambda: second.is_there(first.holder) and lease_clock() > since + SECONDS, 30, "it does not go on")
    database.cut = True
    wait_for(lambda: not second.is_there(first.holder), 30, "it is silent, and taken for alive")
    database.cut = False
    wait_for(lambda: second.is_there(first.holder), 30, "it is back")
    third.close()
    assert not second.is_there(third.holder), "it has left"


def test_a_release_that_the_store_did_not_hear_is_repeated(keepers: Keepers) -> None:
    (first, database), (second, _) = keepers.make(), keepers.make()
    kept, lease = first.acquire("users"), first.acquire("orders")
    database.cut = True
    first.release(lease)
    database.cut = False
    wait_for(acquired(second), 30, "it was never given back")
    kept.check()


def test_the_lease_of_a_dead_process_of_this_machine_is_free_at_once(tmp_path: Path, keepers: Keepers) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    own = LeaseProcess.own()
    dead = LeaseProcess(own.host, process.pid, own.machine, "1")
    store = open_leases(str(tmp_path / "state.sqlite"), seconds=1)
    store.renew("old", 3600, dead.write())
    store.take("orders", "old", None)
    store.close()
    keeper, _ = keepers.make()
    lease = keeper.acquire("orders")
    assert (lease.epoch, lease.predecessor) == (2, dead)


def test_a_frozen_process_and_its_children_are_ended(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "from tidemill.service.lease.lease_process import LeaseProcess;"
        "print(LeaseProcess.own().write(), p.pid, sep='|', flush=True);"
        "p.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text, _, child = process.stdout.readline().partition("|")
        found = LeaseProcess.read(text)
        assert found is not None
        assert not _gone(found)
        process.send_signal(signal.SIGSTOP)
        assert found.end()
        assert process.wait(30) == -signal.SIGKILL
        assert _gone(found)
        wait_for(lambda: not _runs(int(child)), 30, "its child lives")
        assert found.end(), "what is gone needs no end"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_process_elsewhere_is_not_ours_to_judge_or_to_end() -> None:
    elsewhere = LeaseProcess("other", 1, "another boot", "1")
    assert not elsewhere.is_gone
    assert not elsewhere.end()
    assert LeaseProcess.read("nonsense") is None


def _gone(process: LeaseProcess) -> bool:
    return process.is_gone


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
