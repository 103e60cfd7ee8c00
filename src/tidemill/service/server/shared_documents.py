"""What other servers of the same state store change: their documents, and what operators want of pipelines.

A server looks at the store every second. A pipeline that it runs is paused, stopped or started as the store says,
whichever server was asked; documents that came over another server's API are known here too, so that their pipelines
can be taken over. Which server runs what is decided by leases alone (leases.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import orjson

from tidemill.contracts.installation import StoredDocument
from tidemill.errors import LeaseHeld, LifecycleError, StateError, TidemillError
from tidemill.service.cause import Cause, current_actor
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.fleet import Fleet
from tidemill.service.server.managed import LeaseView, Managed
from tidemill.service.server.repeated import RepeatedTask
from tidemill.state.installation import InstallationStore
from tidemill.telemetry import events

LOOK_SECONDS = 1.0


class SharedFleet(Fleet):
    """Follows the store where the runtime has leases; without them this server is the only one."""

    def __init__(self, runtime: Runtime, store: InstallationStore, settings: ControlSettings) -> None:
        super().__init__(runtime, store, settings)
        self._catching_up: set[str] = set()
        follower = RepeatedTask(self._follow_store, seconds=LOOK_SECONDS, name="shared documents")
        self._follower = follower if runtime.leases is not None else None

    def start_wanted(self) -> None:
        if self.runtime.leases is not None:
            with suppress(StateError):  # with the next renewal
                self.runtime.leases.announce()  # who has no server to ask sees so that there is one
        super().start_wanted()
        if self._follower is not None and not self.stopping:
            self._follower.begin()

    def close(self, *, drain_seconds: float) -> None:
        self.stopping = True
        if self._follower is not None:
            self._follower.close()
        super().close(drain_seconds=drain_seconds)

    def _warm_up(self, name: str) -> None:
        if self._runs(name):
            super()._warm_up(name)

    def _runs(self, name: str) -> bool:
        """Whether this process may ever run the pipeline."""
        return self.settings.runs is None or name in self.settings.runs

    def _list_failed(self) -> Iterator[tuple[str, TidemillError]]:
        """Without those that another server has, as far as the last renewal saw: nobody need ask the store for them."""
        for name, error in super()._list_failed():
            if not isinstance(error, LeaseHeld) or (self._runs(name) and not self._seen_elsewhere(name)):
                yield name, error

    def _seen_elsewhere(self, name: str) -> bool:
        leases = self.runtime.leases
        lease = leases.known(name) if leases is not None else None
        if leases is None or lease is None or lease.holder is None:
            return False
        return lease.holder.id != leases.holder and leases.is_alive(lease)

    def holder_elsewhere(self, name: str) -> LeaseView | None:
        """Of a server that is alive, if it has the pipeline."""
        leases = self.runtime.leases
        lease = leases.find(name) if leases is not None else None
        if leases is None or lease is None or not leases.is_alive(lease):
            return None
        view = LeaseView.of(lease, leases.holder)
        return view if view is not None and not view.here else None

    def refuse_elsewhere(self, name: str) -> None:
        """For what only the server can do that runs the pipeline."""
        holder = self.holder_elsewhere(name)
        if holder is not None:
            raise LifecycleError(
                f'pipeline "{name}" runs on another server: {holder.holder}',
                fix="Nothing was changed. Ask that server, or stop the pipeline first, which any server can do.",
            )

    def _is_current(self, name: str) -> bool:
        """Whether what we know of the pipeline is what the store says: another server may have changed it."""
        if self._follower is None:
            return True
        ours = self._managed.get(name)
        try:
            stored = self.store.document(name)
        except StateError:
            return False
        return ours is not None and stored is not None and not self._differs(ours, stored)

    def _bring_up_to_date(self, name: str) -> None:
        """A change is made to what the store has now, not to what the last look saw: it would undo another server's."""
        if self._follower is not None:
            self._adopt_stored(name, self.store.document(name))

    @staticmethod
    def _differs(ours: Managed, stored: StoredDocument) -> bool:
        return stored.desired != ours.desired or (ours.origin == m.API and stored.version != ours.version)

    def _follow_store(self) -> None:
        """A store that does not answer is asked again."""
        try:
            self._look_at_store()
        except StateError:
            return  # the renewal of leases says so
        except TidemillError as error:
            events.fail("server.store_not_followed", code=error.code, error=error.what, where=error.where,
                        fix=error.fix)  # fmt: skip

    def _look_at_store(self) -> None:
        """Each pipeline that was changed elsewhere is brought up to date in a thread of its own: a stop takes long."""
        stored = {each.pipeline: each for each in self.store.documents()}
        for name, ours in list(self._managed.items()):
            known = stored.get(name)
            if (known is None and ours.origin == m.API) or (known is not None and self._differs(ours, known)):
                self._catch_up_beside(name)
        for name, each in stored.items():
            if each.origin == m.API and name not in self._managed:
                self._catch_up_beside(name)

    def _catch_up_beside(self, name: str) -> None:
        if name not in self._catching_up:
            self._catching_up.add(name)
            threading.Thread(target=self._catch_up, args=(name,), name=f"catch up {name}", daemon=True).start()

    def _catch_up(self, name: str) -> None:
        try:
            turn = self._turns.setdefault(name, threading.RLock())
            if not turn.acquire(blocking=False):  # somebody changes it here; the next look sees what came of it
                return
            try:
                self._adopt_stored(name, self.store.document(name))
            finally:
                turn.release()
        except TidemillError as error:
            events.warn("server.store_not_followed", pipeline=name, code=error.code, error=error.what)
        finally:
            self._catching_up.discard(name)

    def _adopt_stored(self, name: str, stored: StoredDocument | None) -> None:
        """The pipeline as the store has it. The turn is held."""
        ours = self._managed.get(name)
        if ours is not None and (stored is None) and ours.origin == m.API:
            if ours.pipeline is not None:
                self.runtime.remove(name, cause=self._cause_of(name, "delete"))
                self._forget_status(name)  # of a run that began here while another server removed it
            with self._changing:
                del self._managed[name]
            self._start_errors.pop(name, None)
            return
        if stored is None or (ours is not None and not self._differs(ours, stored)):
            return
        if ours is None and stored.origin != m.API:  # of a file that this server does not have
            return
        if stored.origin == m.API and (ours is None or stored.version != ours.version):
            new = self._from_store([stored])[name]
            cause = self._cause_of(name, "create", "change")
            if ours is not None:
                self._take_away(ours, cause)
            self._put_in_place(ours, new, cause)
            if new.is_wanted and new.pipeline is not None:  # who was asked begins; restarts look after it
                self._start_errors[name] = LeaseHeld("another server has just been given this pipeline")
            return
        assert ours is not None
        self._managed[name] = replace(ours, desired=stored.desired)
        self._restarts.forget(name)
        self._start_errors.pop(name, None)
        if ours.pipeline is None:
            return
        if stored.desired == m.PAUSED and self.runtime.status(name).state is State.RUNNING:
            self._pause(name, self._cause_of(name, "pause"))
        elif self._managed[name].is_wanted:
            self._start_and_tell(name, self._cause_of(name, "start", "resume", "restart", "pause"))
        elif stored.desired == m.STOPPED:
            self.runtime.stop(name, cause=self._cause_of(name, "stop", "drain"))

    def _cause_of(self, name: str, *actions: str) -> Cause:
        """Who asked another process for it, and why: that is in the audit trail before anybody sees the change."""
        asked = self.store.last_audit(name, actions)
        if asked is None:
            return Cause(current_actor(), "another server of this state store was asked for it")
        return Cause(asked.actor, asked.detail)

    def _from_store(self, stored: Sequence[StoredDocument]) -> dict[str, Managed]:
        """Usually all can be used, and are checked together; else each by itself, to tell which can."""
        found = {
            each.pipeline: Managed(
                each.pipeline, m.API, orjson.loads(each.document), None, None, None,
                each.version, each.desired, each.changed_by, each.changed_at,
            )
            for each in stored
        }  # fmt: skip
        others = [each.document for each in self._managed.values() if each.document and each.name not in found]
        try:
            resolved = self._documents.resolve([each.data or {} for each in found.values()], others)
        except TidemillError:
            resolved = []
        for each, (document, pipeline) in zip(list(found.values()), resolved, strict=False):
            found[each.name] = replace(each, document=document, pipeline=pipeline)
        for each in [each for each in found.values() if not resolved]:
            try:
                ((document, pipeline),) = self._documents.resolve([each.data or {}], others)
                found[each.name] = replace(each, document=document, pipeline=pipeline)
                others.append(document)
            except TidemillError as error:
                found[each.name] = replace(each, problem=error)
        return found
