"""What servers and workers of one store say to each other: how the pipelines that they run are, and requests that only
who runs a pipeline can carry out. In the same tables on SQLite and PostgreSQL.

A status counts for an epoch of the pipeline's lease: what a server says that has lost it changes nothing. A request is
taken by one process, and its answer waits for who asked.
"""

from __future__ import annotations

from dataclasses import astuple

from tidemill.contracts.installation import PublishedStatus, StoredRequest
from tidemill.state.store import Database

_STATUS = "pipeline, epoch, state, document, at"
_REQUEST = "id, pipeline, action, document, actor, reason, asked_at, taken_by, answer"
_MARKS = ", ".join("?" * len(_REQUEST.split(",")))


class SharedRequests:
    """Safe between threads and processes. `StateError` is worth a retry, unless the store is too new."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---------------------------------------------------------------- how pipelines are

    def publish(self, status: PublishedStatus) -> None:
        """Does nothing where a later holder of the lease has published."""
        with self._database.writing(status.pipeline) as run:
            run(
                f"INSERT INTO published_statuses ({_STATUS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (pipeline) DO UPDATE"
                " SET epoch = excluded.epoch, state = excluded.state, document = excluded.document, at = excluded.at"
                " WHERE published_statuses.epoch <= excluded.epoch",
                *astuple(status),
            )  # fmt: skip

    def statuses(self) -> dict[str, PublishedStatus]:
        """By pipeline."""
        with self._database.reading() as run:
            return {row[0]: PublishedStatus(*row) for row in run(f"SELECT {_STATUS} FROM published_statuses")}

    def status(self, pipeline: str) -> PublishedStatus | None:
        with self._database.reading() as run:
            found = run(f"SELECT {_STATUS} FROM published_statuses WHERE pipeline = ?", pipeline)
        return PublishedStatus(*found[0]) if found else None

    def forget_published(self, pipeline: str) -> None:
        with self._database.writing(pipeline) as run:
            run("DELETE FROM published_statuses WHERE pipeline = ?", pipeline)

    # ---------------------------------------------------------------- what is asked of who runs them

    def add_request(self, request: StoredRequest, *, forget_before: str) -> None:
        """Those that were asked before `forget_before` are removed: nobody waits for them."""
        with self._database.writing(request.pipeline) as run:
            run("DELETE FROM server_requests WHERE asked_at < ?", forget_before)
            run(f"INSERT INTO server_requests ({_REQUEST}) VALUES ({_MARKS})", *astuple(request))

    def open_requests(self) -> list[StoredRequest]:
        """Those that nobody has taken, oldest first."""
        with self._database.reading() as run:
            rows = run(f"SELECT {_REQUEST} FROM server_requests WHERE taken_by = '' ORDER BY asked_at, id")
        return [StoredRequest(*row) for row in rows]

    def request(self, id: str) -> StoredRequest | None:
        with self._database.reading() as run:
            found = run(f"SELECT {_REQUEST} FROM server_requests WHERE id = ?", id)
        return StoredRequest(*found[0]) if found else None

    def take_request(self, request: StoredRequest, process: str) -> bool:
        """Of those who take it at once, one does. Who asked takes it back so, too."""
        with self._database.writing(request.pipeline) as run:
            if not run("SELECT id FROM server_requests WHERE id = ? AND taken_by = ''", request.id):
                return False
            run("UPDATE server_requests SET taken_by = ? WHERE id = ?", process, request.id)
            return True

    def answer_request(self, request: StoredRequest, answer: str) -> None:
        with self._database.writing(request.pipeline) as run:
            run("UPDATE server_requests SET answer = ? WHERE id = ?", answer, request.id)

    def remove_request(self, request: StoredRequest) -> None:
        with self._database.writing(request.pipeline) as run:
            run("DELETE FROM server_requests WHERE id = ?", request.id)
