"""The durable queue of runs, and their history: DBOS, and the only module that imports it.

Its tables stand beside the state store: `state.sqlite.runs` next to `state.sqlite`, a schema next to the store's in
PostgreSQL. A run is one workflow. Its id is the pipeline and the slot, so that of several servers one queues it; its
deduplication id is the pipeline, so that none is queued while one is queued or runs. A workflow whose server is gone is
put back into the queue (`recover`). DBOS is one per process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemill.config.spec.schedule import INSTALL
from tidemill.disk.private import open_file
from tidemill.errors import EnvironmentProblem, ErrorData, StateError
from tidemill.service.schedule.values import RunFailed, RunRequest, RunResult, RunState, ScheduledRun
from tidemill.state.postgres_uri import split_schema
from tidemill.telemetry import events

KEPT_RUNS = 200
"""Of each pipeline."""

MOST_RUNS = 4
"""At the same time in one process; others wait in the queue."""

LOOK_SECONDS = 1.0
"""Between looks into a queue; `close` waits for as long."""

_NAME, _VERSION, _QUEUE = "tidemill", "1", "runs"
_STATES = {
    "ENQUEUED": RunState.QUEUED, "DELAYED": RunState.QUEUED, "PENDING": RunState.RUNNING, "SUCCESS": RunState.DONE,
    "ERROR": RunState.FAILED, "MAX_RECOVERY_ATTEMPTS_EXCEEDED": RunState.FAILED, "CANCELLED": RunState.STOPPED,
}  # fmt: skip


class RunQueue:
    """Every method from any thread. `StateError` where its database does not answer. `execute` is the run itself:
    it is called in a thread of its own with the request, and may be called again for the same run after a crash.

    `only`: the pipelines that this process may run; None means all. Who has such a set, and servers without one, use
    different queues: a server cannot take what only a worker may run."""

    _engine = threading.Lock()  # held by the one that has launched DBOS in this process

    def __init__(
        self,
        state: str,
        process: str,
        execute: Callable[[RunRequest], RunResult],
        *,
        only: frozenset[str] | None = None,
    ) -> None:
        self._state, self._process, self._execute, self._only = state, process, execute, only
        self._changing = threading.Lock()
        self._begun = self._closed = False
        self._workflow: Any = None
        self._queues: set[str] = set()

    def begin(self) -> None:
        """Makes its tables where they are missing, and takes runs from here on. Does nothing when called again."""
        with self._changing:
            if self._begun or self._closed:
                return
            try:
                import dbos
            except ModuleNotFoundError as error:
                raise EnvironmentProblem(f"{error.name} is not installed", where="schedule", fix=INSTALL) from error
            if not RunQueue._engine.acquire(blocking=False):
                raise EnvironmentProblem(
                    "this process keeps the schedules of another server already",
                    where="schedule",
                    fix="Run one server in a process.",
                )
            try:
                with _explain(), _lock_launch(self._state):
                    self._launch(dbos)
            except BaseException:
                RunQueue._engine.release()
                raise
            self._begun = True

    def close(self) -> None:
        """After `execute` has returned, or raised `ServerEnds`, everywhere. Takes nothing from here on."""
        with self._changing:
            if self._begun:
                from dbos import DBOS

                DBOS.destroy(destroy_registry=True)
                RunQueue._engine.release()
            self._begun, self._closed = False, True

    def put(self, request: RunRequest) -> ScheduledRun:
        """The run that was queued; or the one that is queued or runs already; or the one that had this slot."""
        from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

        queue = self._queue_of(request.pipeline)
        id = f"{request.pipeline}/{request.slot or uuid.uuid4().hex}"
        with (
            _explain(),
            SetWorkflowID(id),
            SetEnqueueOptions(deduplication_id=request.pipeline, duplication_policy="return-existing"),
        ):
            handle = DBOS.enqueue_workflow(queue, self._workflow, *asdict(request).values())
            return _run(handle.get_status())

    def runs(self, pipeline: str, limit: int = 20) -> list[ScheduledRun]:
        """Newest first."""
        with _explain():
            return [_run(each) for each in self._list(pipeline, limit=limit)]

    def recover(self, is_there: Callable[[str], bool]) -> list[str]:
        """Puts the runs of processes that are gone back into the queue; their ids. Of several servers that do so at
        once, one does."""
        from dbos import DBOS

        with _explain():
            running = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
            processes = {each.executor_id for each in running if each.executor_id} - {self._process}
            gone = [each for each in processes if not is_there(each)]
            if gone:
                DBOS._recover_pending_workflows(gone)
            return [each.workflow_id for each in running if each.executor_id in gone]

    def _launch(self, dbos: Any) -> None:
        url, schema = _place(self._state)
        _log_as_events()
        dbos.DBOS(
            config=dbos.DBOSConfig(
                name=_NAME, system_database_url=url, dbos_system_schema=schema, executor_id=self._process,
                application_version=_VERSION, serializer=dbos.DBOSPortableJSONSerializer(), log_level="WARNING",
                use_listen_notify=False, notification_listener_polling_interval_sec=LOOK_SECONDS, sys_db_pool_size=4,
                run_migrations=True,
            )
        )  # fmt: skip
        try:
            self._workflow = dbos.DBOS.workflow(name="run")(self._make_workflow())
            own = [_QUEUE] if self._only is None else [f"{_QUEUE}/{name}" for name in sorted(self._only)]
            dbos.DBOS.listen_queues(own)
            dbos.DBOS.launch()
            for name in own:
                self._register(name)
        except BaseException:
            dbos.DBOS.destroy(destroy_registry=True)
            raise

    def _register(self, queue: str) -> None:
        from dbos import DBOS

        DBOS.register_queue(
            queue, worker_concurrency=MOST_RUNS, polling_interval_sec=LOOK_SECONDS, on_conflict="always_update"
        )
        self._queues.add(queue)

    def _queue_of(self, pipeline: str) -> str:
        """Of a pipeline that is left to workers: the queue of its own."""
        queue = _QUEUE if self._only is None else f"{_QUEUE}/{pipeline}"
        if queue not in self._queues:
            with _explain():
                self._register(queue)
        return queue

    def _make_workflow(self) -> Callable[[str, str, str], dict[str, Any]]:
        """A function, not a method: DBOS would look for the object of a method in its own registry."""

        def run(pipeline: str, slot: str, actor: str) -> dict[str, Any]:
            result = self._execute(RunRequest(pipeline, slot, actor))
            self._forget_old(pipeline)
            return asdict(result)

        return run

    def _forget_old(self, pipeline: str) -> None:
        from dbos import DBOS

        old = [each.workflow_id for each in self._list(pipeline, offset=KEPT_RUNS) if each.completed_at]
        if old:
            DBOS.delete_workflows(old)

    @staticmethod
    def _list(pipeline: str, **given: Any) -> list[Any]:
        from dbos import DBOS

        return list(DBOS.list_workflows(workflow_id_prefix=f"{pipeline}/", sort_desc=True, **given))


def _run(status: Any) -> ScheduledRun:
    pipeline, slot, actor = status.input["args"]
    result = status.output if isinstance(status.output, dict) else getattr(status.error, "data", None) or {}
    state = RunState.STOPPED if result.get("stopped") else _STATES[status.status]
    error: ErrorData = result.get("error") or {}
    if state is RunState.FAILED and not error:
        error = {"code": "error", "what": str(status.error or status.status)}
    return ScheduledRun(
        status.workflow_id, pipeline, state, slot, actor, _time(status.created_at), _time(status.dequeued_at),
        _time(status.completed_at), result.get("events"), result.get("attempts"),
        max((status.recovery_attempts or 0) - 1, 0), error,
    )  # fmt: skip


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _place(state: str) -> tuple[str, str]:
    """URL and schema of its tables."""
    if "://" in state:
        address, schema = split_schema(state)
        return f"postgresql+psycopg://{address.partition('://')[2]}", f"{schema}_runs"
    return f"sqlite:///{Path(f'{state}.runs').absolute()}", ""


@contextmanager
def _lock_launch(state: str) -> Iterator[None]:
    """DBOS makes its tables in PostgreSQL under a lock, and in SQLite without one: two servers that start at once would
    meet in the middle of it. The lock is a file of its own, because to close a SQLite file is to lose its locks."""
    if "://" in state:
        yield
        return
    lock = open_file(Path(f"{state}.runs.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(open_file(Path(f"{state}.runs"), os.O_RDWR | os.O_CREAT))  # readable for its owner alone
        yield
    finally:
        os.close(lock)


@contextmanager
def _explain() -> Iterator[None]:
    """What DBOS and the drivers under it raise, in our words."""
    from dbos import error as dbos_errors
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (dbos_errors.DBOSException, SQLAlchemyError) as error:
        what = next(iter(str(error).splitlines()), "")
        raise StateError(
            f"the queue of runs cannot be used: {type(error).__name__}: {what}",
            where="beside the state store",
            fix="It is tried again. Its tables are kept where the state store is: check that it answers.",
        ) from error


class _EventHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], RunFailed):
            return  # who executes runs has said so
        events.emit("schedule.engine", record.levelno, message=record.getMessage())


def _log_as_events() -> None:
    """Before it makes a handler of its own."""
    logger = logging.getLogger("dbos")
    if not any(isinstance(each, _EventHandler) for each in logger.handlers):
        logger.handlers[:] = [_EventHandler()]
        logger.propagate = False
