"""What leases stand against: a state store that is away under all servers, a server that wakes up too late, and clocks
that do not agree. Rows are compared; what the old server still tries is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.actors import wait_for
from tests.crash.test_two_servers import DOCUMENT, ELSEWHERE, ServerProcess, TrickleWriter, delivered, server
from tests.delivery.proxy import Proxy
from tests.support.seed import WHOLE, dice
from tidemill.lab.servers.postgres import Postgres

AWAY_SECONDS = 30.0
SECONDS = 240  # for whatever is waited for: java starts slowly on a busy machine
ATTACKS = ("store", "late", "clocks")
CHOSEN = ATTACKS if WHOLE else (dice("lease attacks").choice(ATTACKS),)

# The wall clock, and the clock that leases are measured by, of whoever has it preloaded.
SHIFT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(const char *name) { const char *text = getenv(name); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift("SHIFT_WALL");
  if (!failed && clock == CLOCK_BOOTTIME) now->tv_sec += shift("SHIFT_BOOT");
  return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) *now = found.tv_sec;
  return found.tv_sec;
}
"""


class Attacked:
    """A source, a lake, and a state store of its own; servers reach the store through a proxy each."""

    def __init__(self, directory: Path, dsn: str, store: Postgres, stack: ExitStack) -> None:
        self.directory, self.dsn, self.store, self.lake = directory, dsn, store, directory / "lake"
        self._stack, self._made, self._writer = stack, 0, TrickleWriter(dsn)
        document = DOCUMENT.replace("DSN", dsn).replace("LAKE", str(self.lake))
        (directory / "orders.yaml").write_text(document)

    def start(self, *, elsewhere: bool = False, **environment: str) -> tuple[ServerProcess, Proxy]:
        self._made += 1
        proxy = self._stack.enter_context(Proxy(self.store.port))
        state = self.store.dsn("postgres").replace(f":{self.store.port}/", f":{proxy.port}/")
        made = server(self.directory, f"server-{self._made}", state, elsewhere=elsewhere, environment=environment)
        return self._stack.enter_context(made), proxy

    def start_first(self, **how: Any) -> tuple[ServerProcess, Proxy]:
        """Rows are written from when it streams."""
        holder, proxy = self.start(**how)
        wait_for(holder.streams, SECONDS, holder.last_lines)
        self._stack.enter_context(self._writer)
        return holder, proxy

    def start_both(self, **how: dict[str, str]) -> tuple[ServerProcess, Proxy, ServerProcess, Proxy]:
        holder, proxy = self.start_first(**how.get("first", {}))
        standby, other = self.start(**how.get("second", {}))  # type: ignore[arg-type]
        wait_for(lambda: standby.shows("standby"), SECONDS, standby.last_lines)
        return holder, proxy, standby, other

    def wait_for_delivery(self, *servers: ServerProcess) -> None:
        known = len(delivered(self.lake))
        wait_for(lambda: len(delivered(self.lake)) > known, SECONDS, lambda: _say(*servers))

    def compare(self, *servers: ServerProcess) -> None:
        writer = self._writer
        writer.__exit__()
        wait_for(lambda: max(delivered(self.lake), default=0) == writer.rows, SECONDS, lambda: _say(*servers))
        found = delivered(self.lake)
        assert sorted(set(found)) == list(range(1, writer.rows + 1)), "rows are missing"
        assert {row: count for row, count in Counter(found).items() if count > 1} == {}
        assert found == sorted(found), "the order of the source"


def _say(*servers: ServerProcess) -> str:
    return "\n\n".join(each.last_lines() for each in servers)


@contextmanager
def attacked(directory: Path, source: Postgres) -> Iterator[Attacked]:
    with source.database("lease_attacks") as dsn, Postgres(durable=False) as store, ExitStack() as stack:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        yield Attacked(directory, dsn, store, stack)


@pytest.mark.slow
@pytest.mark.skipif("store" not in CHOSEN, reason="the seed chose another attack on leases; make crash tries all")
def test_a_state_store_that_is_stopped_stops_everybody_and_one_goes_on(tmp_path: Path, postgres18: Postgres) -> None:
    with attacked(tmp_path, postgres18) as it:
        one, _, two, _ = it.start_both()
        it.wait_for_delivery(one, two)
        gone = time.monotonic()
        it.store.stop("immediate")
        # A server that ends itself is started again by whoever looks after it: systemd, Kubernetes, here the other one.
        wait_for(lambda: not one.alive or not one.shows("running"), SECONDS, one.last_lines)
        assert not two.shows("running"), "nobody takes over what nobody can see to be free"
        known = len(delivered(it.lake))
        threading.Event().wait(max(0.0, AWAY_SECONDS - (time.monotonic() - gone)))
        assert len(delivered(it.lake)) == known, "nothing is delivered without a lease"
        it.store.start()
        wait_for(lambda: one.streams() or two.streams(), SECONDS, lambda: _say(one, two))
        it.compare(one, two)
        assert [each.shows("running") for each in (one, two)].count(True) == 1


@pytest.mark.slow
@pytest.mark.skipif("late" not in CHOSEN, reason="the seed chose another attack on leases; make crash tries all")
def test_a_server_that_wakes_up_in_a_delivery_writes_nothing_more(tmp_path: Path, postgres18: Postgres) -> None:
    """It is on another machine, for its successor, who therefore cannot end it."""
    if subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of processes can be made here: run as root")
    freeze = tmp_path / "freeze"
    with attacked(tmp_path, postgres18) as it:
        old, _ = it.start_first(elsewhere=True, TIDEMILL_FREEZE_AT=f"stream.delivered={freeze}")
        successor, _ = it.start()
        wait_for(lambda: successor.shows("standby"), SECONDS, successor.last_lines)
        it.wait_for_delivery(old)
        freeze.touch()
        frozen = tmp_path / "freeze-frozen"
        wait_for(frozen.exists, SECONDS, old.last_lines)
        # The lease is taken; the lock of the directory is the frozen one's still, which nobody can end.
        wait_for(lambda: "lease.taken_over" in successor.log.read_text(), SECONDS, successor.last_lines)
        known = len(delivered(it.lake))
        old.signal_all(signal.SIGCONT)
        wait_for(successor.streams, SECONDS, lambda: _say(old, successor))
        wait_for(lambda: old.shows("standby") or not old.alive, SECONDS, old.last_lines)
        assert "has lost the lease" in old.log.read_text(), "its checkpoint was refused"
        assert successor.status()["lease"]["epoch"] >= 2
        it.wait_for_delivery(successor)
        assert len(delivered(it.lake)) > known
        it.compare(old, successor)


@pytest.mark.slow
@pytest.mark.skipif("clocks" not in CHOSEN, reason="the seed chose another attack on leases; make crash tries all")
def test_clocks_that_do_not_agree_change_nothing(tmp_path: Path, postgres18: Postgres) -> None:
    """One server is hours early, the other late; their machines started at other times, too."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here to shift a clock with")
    (tmp_path / "shift.c").write_text(SHIFT)
    library = tmp_path / "shift.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "shift.c"), "-ldl"], check=True
    )  # fmt: skip
    early = {"LD_PRELOAD": str(library), "SHIFT_WALL": "-7200", "SHIFT_BOOT": "500000"}
    late = {"LD_PRELOAD": str(library), "SHIFT_WALL": "7200", "SHIFT_BOOT": "0"}
    with attacked(tmp_path, postgres18) as it:
        one, proxy, two, _ = it.start_both(first=early, second=late)
        it.wait_for_delivery(one, two)
        threading.Event().wait(8)  # longer than a lease: renewed, it stays where it is
        assert one.status()["lease"]["epoch"] == 1
        assert two.shows("standby")
        proxy.hold()
        wait_for(two.streams, SECONDS, lambda: _say(one, two))
        wait_for(lambda: not one.alive or not one.shows("running"), SECONDS, one.last_lines)
        proxy.release()
        wait_for(lambda: not one.alive or one.shows("standby"), SECONDS, one.last_lines)
        assert two.status()["lease"] == {**two.status()["lease"], "epoch": 2, "here": True}
        it.compare(one, two)
