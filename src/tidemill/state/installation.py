"""What a server keeps: documents of its pipelines, tokens, answers to idempotency keys, and who changed what.

In the same tables on SQLite and PostgreSQL as the state of pipelines. Every write is durable when its call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from tidemill.contracts.installation import AuditEntry, KeyClaim, StoredAnswer, StoredDocument, StoredToken
from tidemill.state.audit import INSTALLATION, append_audit
from tidemill.state.shared_requests import SharedRequests
from tidemill.state.store import Database


class InstallationStore(SharedRequests):
    """Safe between threads and processes. `StateError` is worth a retry, unless the store is too new."""

    def __init__(self, database: Database, uri: str) -> None:
        """`uri` is where the store is, for what is kept beside it."""
        super().__init__(database)
        self.uri = uri

    # ---------------------------------------------------------------- documents

    def documents(self) -> list[StoredDocument]:
        """In the order of their names."""
        return [StoredDocument(*row) for row in self._read(f"SELECT {_DOCUMENT} FROM documents ORDER BY pipeline")]

    def document(self, pipeline: str) -> StoredDocument | None:
        found = self._read(f"SELECT {_DOCUMENT} FROM documents WHERE pipeline = ?", pipeline)
        return StoredDocument(*found[0]) if found else None

    def add_document(self, document: StoredDocument) -> bool:
        """False if there is one of that name: of servers that add it at once, one does."""
        with self._database.writing(document.pipeline) as run:
            if run("SELECT pipeline FROM documents WHERE pipeline = ?", document.pipeline):
                return False
            run(f"INSERT INTO documents ({_DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?, ?)", *astuple(document))
            return True

    def change_document(self, document: StoredDocument, *, instead_of: str | None = None) -> bool:
        """All but what is desired, which others may have changed meanwhile. False if the document is not there any
        more, or has another version than `instead_of`."""
        name = document.pipeline
        with self._database.writing(name) as run:
            found = run("SELECT version FROM documents WHERE pipeline = ?", name)
            if not found or instead_of not in (None, found[0][0]):
                return False
            run(
                "UPDATE documents SET origin = ?, document = ?, version = ?, changed_by = ?, changed_at = ?"
                " WHERE pipeline = ?",
                document.origin, document.document, document.version, document.changed_by, document.changed_at, name,
            )  # fmt: skip
            return True

    def set_desired(self, pipeline: str, desired: str) -> bool:
        """False if the document is not there any more."""
        with self._database.writing(pipeline) as run:
            found = bool(run("SELECT pipeline FROM documents WHERE pipeline = ?", pipeline))
            run("UPDATE documents SET desired = ? WHERE pipeline = ?", desired, pipeline)
            return found

    def remove_document(self, pipeline: str) -> None:
        self._write(pipeline, "DELETE FROM documents WHERE pipeline = ?", pipeline)

    # ---------------------------------------------------------------- owners

    def owner(self, pipeline: str) -> str | None:
        """The tenant whose state is kept under this name, empty for one without a tenant; None if nobody knows."""
        found = self._read("SELECT tenant FROM pipeline_owners WHERE pipeline = ?", pipeline)
        return str(found[0][0]) if found else None

    def set_owner(self, pipeline: str, tenant: str) -> None:
        """Outlives the document: what the pipeline captured is still there when that is deleted."""
        self._write(
            pipeline,
            "INSERT INTO pipeline_owners (pipeline, tenant) VALUES (?, ?)"
            " ON CONFLICT (pipeline) DO UPDATE SET tenant = excluded.tenant",
            pipeline, tenant,
        )  # fmt: skip

    # ---------------------------------------------------------------- tokens

    def tokens(self) -> list[StoredToken]:
        """Oldest first; those that expired or were revoked too."""
        return [StoredToken(*row) for row in self._read(f"SELECT {_TOKEN} FROM tokens ORDER BY created_at, id")]

    def token(self, id: str) -> StoredToken | None:
        found = self._read(f"SELECT {_TOKEN} FROM tokens WHERE id = ?", id)
        return StoredToken(*found[0]) if found else None

    def add_token(self, token: StoredToken, entry: AuditEntry) -> None:
        """The token and its entry in the audit trail, or neither; so for every change of a token."""
        with self._database.writing(INSTALLATION) as run:
            run(f"INSERT INTO tokens ({_TOKEN}) VALUES ({_MARKS})", *astuple(token))
            append_audit(run, entry)

    def add_first_token(self, token: StoredToken, entry: AuditEntry) -> bool:
        """Only if the store never had one: of servers that start at once, one adds its token."""
        with self._database.writing(INSTALLATION) as run:
            if run("SELECT id FROM tokens LIMIT 1"):
                return False
            run(f"INSERT INTO tokens ({_TOKEN}) VALUES ({_MARKS})", *astuple(token))
            append_audit(run, entry)
            return True

    def revoke_token(self, id: str, at: str, entry: AuditEntry) -> bool:
        """False if there is no such token. One that was revoked keeps its time, and has no second entry."""
        with self._database.writing(INSTALLATION) as run:
            found = run("SELECT revoked_at FROM tokens WHERE id = ?", id)
            if found and not found[0][0]:
                run("UPDATE tokens SET revoked_at = ? WHERE id = ?", at, id)
                append_audit(run, entry)
            return bool(found)

    # ---------------------------------------------------------------- answers to idempotency keys

    def claim_key(
        self, caller: str, key: str, claim: KeyClaim, *, instead_of: str | None = None
    ) -> StoredAnswer | KeyClaim | None:
        """None: the key is the claimant's now; of servers that claim it at once, one gets it. Else what is there: an
        answer, or the claim of somebody else than `instead_of`, who is gone."""
        with self._database.writing(INSTALLATION) as run:
            if found := run(f"SELECT {_ANSWER} FROM answers WHERE {_KEY}", caller, key):
                return StoredAnswer(*found[0])
            if found := run(f"SELECT claimant, at FROM key_claims WHERE {_KEY}", caller, key):
                there = KeyClaim(*found[0])
                if there.claimant != instead_of:
                    return there
            run(f"DELETE FROM key_claims WHERE {_KEY}", caller, key)
            run(
                "INSERT INTO key_claims (caller, idempotency_key, claimant, at) VALUES (?, ?, ?, ?)",
                caller, key, claim.claimant, claim.at,
            )  # fmt: skip
            return None

    def release_key(self, caller: str, key: str, claimant: str) -> None:
        """The request is no longer under way: it was answered, or may be sent again because nothing was changed."""
        self._write(INSTALLATION, f"DELETE FROM key_claims WHERE {_KEY} AND claimant = ?", caller, key, claimant)

    def keep_answer(self, caller: str, key: str, answer: StoredAnswer, *, forget_before: str) -> None:
        """The first answer to a key stays. What is from before `forget_before` is removed."""
        with self._database.writing(INSTALLATION) as run:
            run("DELETE FROM answers WHERE at < ?", forget_before)
            run("DELETE FROM key_claims WHERE at < ?", forget_before)  # of servers that never came back
            run(
                f"INSERT INTO answers (caller, idempotency_key, {_ANSWER}) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (caller, idempotency_key) DO NOTHING",
                caller, key, *astuple(answer),
            )  # fmt: skip

    # ---------------------------------------------------------------- audit trail

    def audit(self, entry: AuditEntry) -> None:
        with self._database.writing(INSTALLATION) as run:
            append_audit(run, entry)

    def audit_trail(self, limit: int = 100, *, before: int | None = None) -> list[AuditEntry]:
        """Newest first; only those whose number is below `before`."""
        chosen, values = ("", ()) if before is None else ("WHERE sequence < ?", (before,))
        rows = self._read(f"SELECT {_AUDIT} FROM audit {chosen} ORDER BY sequence DESC LIMIT ?", *values, limit)
        return [AuditEntry(*row) for row in rows]

    def last_audit(self, subject: str, actions: Sequence[str]) -> AuditEntry | None:
        """The newest entry that is one of these actions."""
        rows = self._read(
            f"SELECT {_AUDIT} FROM audit WHERE subject = ? AND action IN"
            f" ({', '.join('?' * len(actions))}) ORDER BY sequence DESC LIMIT 1",
            subject, *actions,
        )  # fmt: skip
        return AuditEntry(*rows[0]) if rows else None

    def close(self) -> None:
        self._database.close()

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database.reading() as run:
            return list(run(statement, *values))

    def _write(self, locked: str, statement: str, *values: Any) -> None:
        with self._database.writing(locked) as run:
            run(statement, *values)


_DOCUMENT = "pipeline, origin, document, version, desired, changed_by, changed_at"
_ANSWER = "request, status, headers, body, at"
_AUDIT = "at, actor, action, subject, detail, sequence"
_KEY = "caller = ? AND idempotency_key = ?"
_TOKEN = "id, name, role, digest, created_at, expires_at, revoked_at, tenant, pipeline"
_MARKS = ", ".join("?" * len(_TOKEN.split(",")))
