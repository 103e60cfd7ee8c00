"""The pipelines of a server: from files and from the API, kept in the state store, changed while others run.

What an operator wants of a pipeline (`desired`) outlives the server; a pipeline that is wanted and failed is started
again where that may mend it (restarts.py). Changes of one pipeline take turns, and are refused where that would take
long; those of others do not wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidemill.config import DocumentError, Pipeline
from tidemill.config.document import Document
from tidemill.config.posted import UsedValues, merge_patch, refuse_masks
from tidemill.contracts.installation import StoredRequest
from tidemill.errors import ConfigError, LifecycleError, TidemillError, from_data
from tidemill.model.clock import utc_now
from tidemill.service.cause import Cause, current_actor
from tidemill.service.run.ownership import check_move
from tidemill.service.run.status import State
from tidemill.service.server import managed as m
from tidemill.service.server.document_set import name_in
from tidemill.service.server.lifecycle import REQUEST_SECONDS, LifecycleFleet
from tidemill.service.server.managed import Managed, PipelineView
from tidemill.service.server.scope import WHOLE, Scope
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.stream.batch.failures import explain


@dataclass(frozen=True, slots=True)
class Reloaded:
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class ControlPlane(LifecycleFleet):
    """Every method from any thread. `cause` is who asks. Each change is in the audit trail when its call returns."""

    # ---------------------------------------------------------------- from start to end

    def load(self) -> None:
        """Reads files and the store; starts nothing. `ConfigError` if a file is wrong. An API document that cannot be
        used any more stays, as failed."""
        stored = {each.pipeline: each for each in self.store.documents()}
        from_files = self._documents.read_files([])
        for name in from_files:
            if name in stored and stored[name].origin == m.API:
                raise ConfigError(
                    f'pipeline "{name}" is in a file and was created over the API too',
                    where=from_files[name][0].file,
                    fix="Rename the one in the file, or start without the file and delete the other one.",
                )
        for name, (document, pipeline) in from_files.items():
            desired = stored[name].desired if name in stored else m.RUNNING
            self._managed[name] = m.of_file(name, document, pipeline, desired)
        self._managed.update(self._from_store([each for each in stored.values() if each.origin == m.API]))
        for gone in set() if self.settings.is_worker else set(stored) - set(self._managed):
            if self.holder_elsewhere(gone) is None:
                self.store.remove_document(gone)  # a file that is not there any more
        for ours in self._managed.values():
            if ours.pipeline is not None:
                self.runtime.add(ours.pipeline)
                self._note_owner(ours.pipeline)
            if ours.name not in stored:
                self.store.add_document(ours.stored())

    def reload(self, cause: Cause) -> Reloaded:
        """Reads the files again. Only what changed restarts. `ConfigError` if one is wrong: nothing is changed then."""
        with self._changing:
            known = {name: each for name, each in self._managed.items() if each.origin == m.FILE}
            api = {name: each for name, each in self._managed.items() if each.origin == m.API}
            for documents in self._sets([each for each in api.values() if each.document]):
                from_files = self._documents.read_files(documents)
            over_api = sorted(set(from_files) & set(api))
            if over_api:
                raise ConfigError(
                    f'pipeline "{over_api[0]}" was created over the API', fix="Give the file another name."
                )
            self.runtime.check_together(
                [*(pipeline for _, pipeline in from_files.values()), *(p.pipeline for p in api.values() if p.pipeline)]
            )
            removed = sorted(set(known) - set(from_files))
            added = [name for name in from_files if name not in known]
            changed = [
                name
                for name, each in known.items()
                if name in from_files and (each.document is None or each.document.data != from_files[name][0].data)
            ]
            for name in changed:
                if (there := known[name].pipeline) is not None:
                    check_move(there, from_files[name][1])
            for name in (*added, *changed):
                self._claim(known.get(name), name, from_files[name][0])
        try:
            with ExitStack() as turns:
                for name in sorted((*removed, *added, *changed)):
                    turns.enter_context(self._turn(name, wait=True))
                for name in removed:
                    self._remove(self._find(name), cause)
                for name in changed:  # all of them first: old and new ones may want another Spark
                    self._take_away(self._find(name), cause)
                for name in (*added, *changed):
                    before = self._managed.get(name)
                    new = m.of_file(name, *from_files[name], before.desired if before else m.RUNNING)
                    if not self.settings.is_worker:
                        self.audit(cause, "add from file" if before is None else "change by file", name)
                    self._put_in_place(before, new, cause)
                    self._note_owner(from_files[name][1])
                    if not self.store.change_document(new.stored()):
                        self.store.add_document(new.stored())
                for name in (*added, *changed):
                    if self._find(name).is_wanted:
                        self._start_in_turn(name, cause)
        finally:
            self._release(*added, *changed)
        return Reloaded(tuple(added), tuple(changed), tuple(removed))

    # ---------------------------------------------------------------- documents over the API

    def validate(self, data: Mapping[str, Any], *, instead_of: str | None = None, scope: Scope = WHOLE) -> Pipeline:
        """As `create` would, without a change."""
        with self._changing:
            return self._resolve(data, scope, instead_of)[1]

    def values_used(self, data: Mapping[str, Any]) -> UsedValues:
        """To keep them out of an answer: who may only check a document reads no variable."""
        return self._documents.values_used(data)

    def create(
        self, data: Mapping[str, Any], cause: Cause, *, start: bool = True, scope: Scope = WHOLE
    ) -> PipelineView:
        """A failed start leaves the pipeline there, failed, with its error. `LifecycleError` if the name is taken."""
        name = name_in(data)
        with self._turn(name):
            with self._changing:
                if name in self._managed or name in self._claims:
                    raise m.name_conflict(name)
                document, pipeline = self._resolve(data, scope)
                scope.check_document(name, pipeline.tenant)
                self._check_owner(scope, pipeline)
                desired = m.RUNNING if start else m.CREATED
                new = Managed(
                    name, m.API, data, document, pipeline, None, m.new_version(), desired, cause.actor, utc_now()
                )
                self.runtime.add(pipeline)
                try:
                    if not self.store.add_document(new.stored()):
                        raise m.name_conflict(name)
                    self._note_owner(pipeline)
                except BaseException:
                    self.runtime.remove(name)
                    raise
                self._managed[name] = new
            self.audit(cause, "create", name)
            if start:
                self._start_and_tell(name, cause)
        return self.view(name)

    def patch(
        self, name: str, patch: Mapping[str, Any], cause: Cause, *, expect: Sequence[str] | None = None,
        scope: Scope = WHOLE,
    ) -> PipelineView:  # fmt: skip
        """A JSON merge patch of the document as it was sent."""
        refuse_masks(patch)
        with self._turn(name):
            current = self._of_api(name, expect)
            merged, same = merge_patch(current.data, patch), [current.version]
            if not self.is_elsewhere(name):
                return self.replace(name, merged, cause, expect=same, scope=scope)
        return self.replace(name, merged, cause, expect=same, scope=scope)

    def replace(
        self, name: str, data: Mapping[str, Any], cause: Cause, *, expect: Sequence[str] | None = None,
        scope: Scope = WHOLE,
    ) -> PipelineView:  # fmt: skip
        """Stops the pipeline, gives it the new document and starts it again if it is desired to run. It delivers
        nothing before it is known that it can start, so that no event is lost to the old sinks. If it cannot, the old
        document is put back, and started: `LifecycleError` says why. `expect` are versions, one of which it must have:
        else `ChangedMeanwhile`. The process that runs the pipeline does all that."""
        with self._turn(name):
            current = self._of_api(name, expect)
            new = self._changed(current, data, cause, scope)
            if new is None:
                return self.view(name)
            if not self.is_elsewhere(name):
                self._exchange(current, new, cause, scope)
                return self.view(name)
        asked = {"document": data, "expect": [current.version], "scope": asdict(scope)}
        if not self._ask(name, "replace", asked, cause, REQUEST_SECONDS):
            with self._turn(name):
                self._of_api(name, [current.version])
                self._exchange(current, new, cause, scope)
        return self.view(name)

    def _changed(self, current: Managed, data: Mapping[str, Any], cause: Cause, scope: Scope) -> Managed | None:
        """The pipeline with another document, which has been checked; None if that changes nothing."""
        name = current.name
        if name_in(data) != name:
            raise ConfigError("a pipeline cannot be renamed", where="metadata.name", fix="Create another one.")
        with self._changing:
            document, pipeline = self._resolve(data, scope, name)
        scope.check_document(name, pipeline.tenant)
        if document.data == (current.document.data if current.document else None):
            return None
        if current.pipeline is not None:
            check_move(current.pipeline, pipeline)
        return replace(
            current, data=data, document=document, pipeline=pipeline, problem=None, version=m.new_version(),
            changed_by=cause.actor, changed_at=utc_now(),
        )  # fmt: skip

    def _exchange(self, current: Managed, new: Managed, cause: Cause, scope: Scope) -> None:
        """The turn is held. What only workers run is not tried out: nobody took the request to."""
        name, pipeline = current.name, new.pipeline
        assert pipeline is not None
        assert new.document is not None
        assert new.data is not None
        with self._changing:
            self._resolve(new.data, scope, name)  # once more: others may have been added since
            self._claim(current, name, new.document)
        tries = new.is_wanted and self._runs(name)
        try:
            self.audit(cause, "change", name)
            snapshot = snapshot_requests.newest(pipeline)
            self._take_away(current, cause)
            self._put_in_place(current, new, cause)
            try:
                if tries:
                    self._start(name, cause, trial=True)
                    self._try_out(name)
                if not self.store.change_document(new.stored(), instead_of=current.version):
                    raise m.change_conflict(current)
                self._note_owner(pipeline)
            except Exception as error:
                refusal = self._roll_back(current, new, explain(error), snapshot)
                if not tries:
                    raise
                raise refusal from error
            self.runtime.accept(name)
        finally:
            self._release(name)
        if new.is_wanted and not tries:
            self._start_and_tell(name, cause)

    def delete(self, name: str, cause: Cause, *, expect: Sequence[str] | None = None) -> None:
        """Stops it and forgets its document. Its state directory stays: created again, it goes on."""
        with self._turn(name):
            current = self._of_api(name, expect)
            if not self.is_elsewhere(name):
                self.audit(cause, "delete", name)
                self._remove(current, cause)
                return
        if not self._ask(name, "delete", {"expect": [current.version]}, cause, REQUEST_SECONDS):
            with self._turn(name):
                current = self._of_api(name, [current.version])
                self.audit(cause, "delete", name)
                self._remove(current, cause)

    def _carry_out(self, request: StoredRequest, given: Mapping[str, Any], cause: Cause) -> None:
        """What another server was asked for, which has checked who asks."""
        name = request.pipeline
        match request.action:
            case "drain":
                self.drain(name, cause, seconds=given["seconds"])
            case "start" | "pause" | "resume" | "stop" | "restart" as verb:
                {"start": self.start, "pause": self.pause, "resume": self.resume, "stop": self.stop,
                 "restart": self.restart}[verb](name, cause)  # fmt: skip
            case "create":
                self.create(given["document"], cause)
            case "replace":
                scope = Scope(**given.get("scope", {}))
                self.replace(name, given["document"], cause, expect=given["expect"], scope=scope)
            case "delete":
                self.delete(name, cause, expect=given["expect"])
            case unknown:  # of a later version
                raise LifecycleError(f'this process does not know how to "{unknown}"', fix="Update it.")

    # ---------------------------------------------------------------- how

    def _try_out(self, name: str) -> None:
        """Waits until capture streams. Its error, if the pipeline fails, or if it still cannot begin when the time is
        over; one that is only slow passes."""
        until = time.monotonic() + self.settings.trial_seconds
        while True:
            status = self.runtime.status(name)
            if status.state in (State.FAILING, State.FAILED):
                raise self.runtime.error(name) or from_data(status.error)
            if status.state not in (State.RUNNING, State.PAUSED):  # an operator stopped it meanwhile
                return
            if status.began or status.stage == "cdc":
                return
            if time.monotonic() >= until:
                if status.error:
                    raise from_data(status.error)
                return
            time.sleep(0.05)

    def _roll_back(self, old: Managed, new: Managed, error: TidemillError, snapshot: int) -> LifecycleError:
        """`snapshot` is the newest one from before the trial: later ones are the new document's."""
        cause = Cause(current_actor(), f"the changed document could not start: {error.what}")
        self._take_away(new, cause)
        if new.pipeline is not None:
            snapshot_requests.cancel_after(new.pipeline, snapshot)
        self._put_in_place(new, old, cause)
        started = old.pipeline is not None and old.is_wanted
        if started:
            self._start_and_tell(old.name, cause)
        self.audit(cause, "roll back", old.name)
        again = " and was started again" if started else ""
        return LifecycleError(
            f"the changed pipeline cannot start: {error.what}",
            where=error.where or f"pipeline {old.name}",
            fix=f"{error.fix} The document from before is in place{again}.".strip(),
        )

    def _of_api(self, name: str, expect: Sequence[str] | None) -> Managed:
        found = self._find(name)
        if found.origin != m.API:
            raise LifecycleError(
                f'pipeline "{name}" comes from a file',
                where=found.document.file if found.document else "",
                fix="Change the file and send SIGHUP to the server.",
            )
        if expect is not None and found.version not in expect:
            raise m.change_conflict(found)
        return found

    def _resolve(
        self, data: Mapping[str, Any], scope: Scope, instead_of: str | None = None
    ) -> tuple[Document, Pipeline]:
        """Among the documents there are, without the one it replaces. `_changing` is held. What is wrong is said as far
        as the scope goes: a problem with somebody else's pipeline does not name it."""
        others = [each for each in self._managed.values() if each.document and each.name != instead_of]
        try:
            for documents in self._sets(others, instead_of):
                ((document, pipeline),) = self._documents.resolve([data], documents)
        except DocumentError:
            if not scope.is_whole:
                seen = [each.document for each in others if each.document and scope.covers(each.name, each.tenant)]
                self._documents.resolve([data], seen)
                raise m.foreign_conflict(name_in(data)) from None
            raise
        return document, pipeline
