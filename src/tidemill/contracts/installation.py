"""What a server keeps in the state store besides the state of its pipelines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A pipeline of a server. `origin` is `api` or `file`; `document` is the JSON of one that came over the API, with
    its `${VAR}` unexpanded, and empty for a file's. `version` is another one after every change. `desired` is what an
    operator wants it to be: running, paused or stopped."""

    pipeline: str
    origin: str
    document: str
    version: str
    desired: str
    changed_by: str
    changed_at: str


@dataclass(frozen=True, slots=True)
class StoredToken:
    """`digest` is the SHA-256 of the secret, which is nowhere. Times are ISO 8601; empty means never. `tenant` or
    `pipeline` is what the token is for; both empty: everything."""

    id: str
    name: str
    role: str
    digest: str
    created_at: str
    expires_at: str = ""
    revoked_at: str = ""
    tenant: str = ""
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What a request with an idempotency key was answered. `request` is the digest of its method, path and body."""

    request: str
    status: int
    headers: str
    body: str
    at: str


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The server that carries out a request with an idempotency key, while it is under way."""

    claimant: str
    at: str


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """How a pipeline is, said by the process that runs it, for all others. `epoch` is that of its lease, `document` the
    JSON of its status."""

    pipeline: str
    epoch: int
    state: str
    document: str
    at: str


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """What a server was asked and another process must do, because it runs the pipeline. `document` is the JSON of what
    the action needs; `taken_by` the process that does it, `answer` the JSON of what came of it, both empty before."""

    id: str
    pipeline: str
    action: str
    document: str
    actor: str
    reason: str
    asked_at: str
    taken_by: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change that somebody asked for: who, when, what, of what. `number` is its place in the trail, 0 before it has
    one."""

    at: str
    actor: str
    action: str
    subject: str
    detail: str
    number: int = 0
