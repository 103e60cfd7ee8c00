"""The leases of this process: taken before a pipeline starts, renewed by a thread, given back when it has stopped.

A lease counts from before its renewal was sent. The last quarter of it is not used: from then on nothing is written
(`HeldLease.check`) and the pipeline is stopped, so that all has ended when another server may take over. A process that
cannot stop in time ends itself (`_end_process`).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tidemill.contracts.lease import LeaseHolder, StoredLease, lease_clock
from tidemill.errors import LeaseHeld, LeaseLost, StateError
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.state import open_leases
from tidemill.state.leases import LeaseStore
from tidemill.telemetry import events

LEASE_SECONDS = 10.0
_RENEWALS = 5  # in the time that a lease lasts
_USED = 0.75  # of a lease, by its holder
_LATEST = 1.5  # leases, after which a process that still works on what it lost ends


@dataclass(slots=True)
class HeldLease:
    """`predecessor` is the process that did not give the lease back, or None. `on_renewed` is called with the new
    `until`, by the thread that renews: it must return at once. `on_lost` is called in a thread of its own."""

    pipeline: str
    epoch: int
    predecessor: LeaseProcess | None
    _keeper: LeaseKeeper = field(repr=False)
    on_renewed: Callable[[float], None] = lambda until: None
    on_lost: Callable[[], None] = lambda: None
    _taken_away: bool = False

    @property
    def holder(self) -> str:
        return self._keeper.holder

    @property
    def until(self) -> float:
        """By `lease_clock`; it rises with each renewal."""
        return 0.0 if self._taken_away else self._keeper.until

    @property
    def lost(self) -> bool:
        return lease_clock() >= self.until

    def check(self) -> None:
        """`LeaseLost` if it has gone to another server, or may have. Call before each write: a process that was frozen
        finds out here. One that had no CPU for a while has the lease again where nobody took it meanwhile."""
        if self.lost and not self._keeper.regain(self):
            raise LeaseLost(
                f'this server has lost the lease of pipeline "{self.pipeline}" (epoch {self.epoch})',
                where=str(LeaseProcess.own()),
                fix="Nothing is lost: the server that has it now goes on from the checkpoint. If there is none, the "
                "state store did not answer in time; the pipeline starts again when it does.",
            )

    @property
    def taken_away(self) -> bool:
        """Another server has it, or it was given back."""
        return self._taken_away

    def take_away(self) -> None:
        self._taken_away = True


class LeaseKeeper:
    """Every method from any thread. Made once for a process and a state store."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        seconds: float = LEASE_SECONDS,
        end_process: Callable[[], None] | None = None,
    ) -> None:
        self.holder, self.seconds = uuid.uuid4().hex, seconds
        self.process = LeaseProcess.own()
        self.until = 0.0
        self._store, self._end_process = store, end_process or _end_process
        self._changing = threading.Lock()  # guards what is below
        self._held: dict[str, HeldLease] = {}
        self._acquiring: set[str] = set()
        self._seen: dict[str, tuple[int, float]] = {}  # other holders: their beat, and since when it is that
        self._watched: set[str] = set()  # other holders that need not have a lease
        self._announced = False
        self._known: dict[str, StoredLease] = {}
        self._stop = threading.Event()
        self._silent = False
        self._regaining = threading.Lock()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._keep, "lease renewal"), (self._enforce, "lease guard"))
        ]

    def begin(self) -> None:
        """From here on leases are renewed, and others' are watched. A store that does not answer is tried again."""
        with suppress(StateError):
            self._look()
            for each in self.others():
                if (process := LeaseProcess.read(each.process)) is not None and process.is_gone:
                    self._store.forget_idle(each.id)
        for thread in self._threads:
            thread.start()

    def acquire(self, pipeline: str) -> HeldLease:
        """`LeaseHeld` if a server that is alive has it, `StateError` if the store does not answer."""
        if lease_clock() >= self.until - self.seconds / 2:
            self._renew()
        with self._changing:
            self._acquiring.add(pipeline)
        try:
            seen, predecessor = self._find_free(pipeline)
            epoch = self._store.take(pipeline, self.holder, seen)
            if epoch is None:  # somebody was faster, or its holder has just renewed
                raise _refuse(self._store.find(pipeline), predecessor)
            lease = HeldLease(pipeline, epoch, predecessor, self)
            with self._changing:
                self._held[pipeline] = lease
            self._note(pipeline)
        finally:
            with self._changing:
                self._acquiring.discard(pipeline)
        if predecessor is not None:
            events.warn("lease.taken_over", pipeline=pipeline, epoch=epoch, predecessor=str(predecessor))
        return lease

    def _find_free(self, pipeline: str) -> tuple[StoredLease | None, LeaseProcess | None]:
        """The lease, if it may be taken, and the process that did not give it back."""
        seen = self._store.find(pipeline)
        if seen is None or seen.holder is None:
            return seen, None
        if seen.holder.id == self.holder:  # its release was not answered; our own beat must not come between
            self._store.release(pipeline, self.holder, seen.epoch)
            return self._store.find(pipeline), None
        process = LeaseProcess.read(seen.holder.process)
        if self.is_alive(seen):
            raise _refuse(seen, process)
        return seen, process

    def regain(self, lease: HeldLease) -> bool:
        """Whether a late renewal brings it back. None is tried where the store did not answer the last one: whoever
        waits for it stops late."""
        with self._regaining:  # one renewal is for all leases
            if lease.taken_away or self._silent or self._stop.is_set():
                return False
            if lease.lost:
                try:
                    self._renew()
                except StateError as error:
                    self._note_silence(error)
        return not lease.lost

    def release(self, lease: HeldLease) -> None:
        """Nothing of the pipeline runs any more. Where the store does not answer, the next renewal gives it back."""
        with self._changing:
            if self._held.get(lease.pipeline) is lease:
                del self._held[lease.pipeline]
        lease.take_away()
        with suppress(StateError):
            self._store.release(lease.pipeline, self.holder, lease.epoch)
            self._note(lease.pipeline)

    def find(self, pipeline: str) -> StoredLease | None:
        """As the store has it now."""
        return self._note(pipeline)

    def known(self, pipeline: str) -> StoredLease | None:
        """As it was last seen; waits for nothing."""
        return self._known.get(pipeline)

    def is_alive(self, lease: StoredLease) -> bool:
        """Whether its holder was seen to renew, or is just being watched."""
        return lease.holder is not None and self._beats(lease.holder)

    def announce(self) -> None:
        """From here on others can tell that this process is there, also while it has no lease."""
        if not self._announced:
            self._announced = True  # if this renewal is not answered, the next one is
            self._renew()

    def others(self) -> list[LeaseHolder]:
        """Other processes that announced themselves, or have a lease, and have not left."""
        return [each for each in self._store.holders() if each.id != self.holder]

    def is_there(self, holder: str) -> bool:
        """Of a process that announced itself: whether it was seen to renew, or is just being watched."""
        found = self._store.holder(holder)
        with self._changing:
            self._watched.add(holder)
        if found is not None and self._beats(found):
            return True
        with self._changing:
            self._watched.discard(holder)
        if found is not None:
            self._store.forget_idle(holder)
        return False

    def silent(self) -> list[LeaseProcess]:
        """Other processes that announced themselves, or have a lease, and were not seen to renew for as long as a lease
        of theirs lasts. Whoever wants to know asks again and again: a silence begins with the first look at it."""
        others = self.others()
        with self._changing:
            self._watched = {each.id for each in others}
        found = [each for each in others if self._silence(each.id, each.beat) >= each.seconds]
        return [process for each in found if (process := LeaseProcess.read(each.process)) is not None]

    def _beats(self, holder: LeaseHolder) -> bool:
        if holder.id == self.holder:
            return True
        process = LeaseProcess.read(holder.process)
        if process is not None and process.is_gone:
            return False
        return self._silence(holder.id, holder.beat) < holder.seconds

    def close(self) -> None:
        """After everything has stopped: what this process has is free at once."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(self.seconds)
        with suppress(StateError):
            self._store.leave(self.holder)
        self._store.close()

    def _note(self, pipeline: str) -> StoredLease | None:
        """What is shown need not wait for the next renewal."""
        if (found := self._store.find(pipeline)) is not None:
            self._known = {**self._known, pipeline: found}
        return found

    def _silence(self, holder: str, beat: int) -> float:
        """For how long the holder's beat has been this one, by our clock."""
        now = lease_clock()
        with self._changing:
            known = self._seen.get(holder)
            if known is None or known[0] != beat:
                known = self._seen[holder] = (beat, now)
            return now - known[1]

    def _keep(self) -> None:
        while not self._stop.wait(self.seconds / _RENEWALS):
            try:
                with self._changing:
                    idle = not self._held and not self._acquiring and not self._announced
                self._look() if idle else self._renew()
            except StateError as error:
                self._note_silence(error)

    def _note_silence(self, error: StateError) -> None:
        if not self._silent:
            events.warn("lease.not_renewed", error=error.what, where=error.where, fix=error.fix)
        self._silent = True

    def _renew(self) -> None:
        with self._changing:
            held = dict(self._held)
        sent = lease_clock()
        ours = self._store.renew(self.holder, self.seconds, self.process.write())
        self.until = max(self.until, sent + self.seconds * _USED)
        self._silent = False
        for name, lease in held.items():
            if ours.get(name) != lease.epoch:
                lease.take_away()
        with self._changing:
            in_use = {*held, *self._held, *self._acquiring}
        for name in ours.keys() - in_use:  # its release was not answered
            self._store.release(name, self.holder, ours[name])
        for lease in held.values():
            if not lease.lost:
                lease.on_renewed(lease.until)
        self._look()

    def _look(self) -> None:
        """At the leases of all: those of other holders can be taken only by who has watched them long enough."""
        leases = self._store.leases()
        for each in leases:
            if each.holder is not None and each.holder.id != self.holder:
                self._silence(each.holder.id, each.holder.beat)
        holders = {each.holder.id for each in leases if each.holder is not None}
        with self._changing:
            kept = holders | self._watched
            self._seen = {holder: seen for holder, seen in self._seen.items() if holder in kept}
        self._known = {each.pipeline: each for each in leases}

    def _enforce(self) -> None:
        """The store may not answer, and what stops a pipeline may wait for it: the end of the process waits for
        nothing."""
        late_since, noticed = 0.0, set[str]()
        while not self._stop.wait(0.1):
            with self._changing:
                late = {name: lease for name, lease in self._held.items() if lease.lost}
            for name in late.keys() - noticed:
                threading.Thread(target=late[name].on_lost, name=f"lease of {name}", daemon=True).start()
            noticed = set(late)
            if not late:
                late_since = 0.0
            elif not late_since:  # after a sleep of the machine too: what it holds has time to stop, or is renewed
                late_since = lease_clock()
            elif lease_clock() - late_since > self.seconds * (_LATEST - _USED):
                events.fail(
                    "lease.process_ends", pipelines=",".join(sorted(late)),
                    error="the state store did not answer and the pipelines did not stop in time",
                    fix="Nothing is lost. Let systemd or Kubernetes start the server again.",
                )  # fmt: skip
                self._end_process()
                return


@contextmanager
def keeping_leases(uri: str, seconds: float = LEASE_SECONDS) -> Iterator[LeaseKeeper]:
    """A keeper over the state store at `uri`, until everything that it holds has stopped."""
    keeper = LeaseKeeper(open_leases(uri, seconds=seconds / 4), seconds=seconds)
    keeper.begin()
    try:
        yield keeper
    finally:
        keeper.close()


def _refuse(lease: StoredLease | None, process: LeaseProcess | None) -> LeaseHeld:
    since = f" since {lease.since}" if lease is not None and lease.holder is not None else ""
    return LeaseHeld(
        f"another server runs the pipeline{since}",
        where=str(process) if process is not None else "another server",
        fix="Nothing was changed. It is taken over when that server gives it back, or does not renew its lease.",
    )


def _end_process() -> None:
    os._exit(3)
