"""Who may ask a server for what: tokens that are shown once, stored as digests, expire and can be revoked.

A token is `tm_<id>_<secret>`. The secret has 256 bits of chance, so a plain SHA-256 of it is enough: there is nothing
to guess that a slow hash would protect. Every request reads the token from the store: a revoked one is refused at once.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemill.contracts.installation import AuditEntry, StoredToken
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.model.clock import utc_now
from tidemill.service.cause import current_actor
from tidemill.service.server.scope import WHOLE, Scope
from tidemill.state import inspect_store, open_installation
from tidemill.state.installation import InstallationStore

_TOKEN = re.compile(r"tm_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_DURATION = re.compile(r"(\d{1,5})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Role(enum.StrEnum):
    """What each may do, and all that those before it may."""

    VIEWER = "viewer"  # sees pipelines, their status and their tables; no row's values
    OPERATOR = "operator"  # starts, pauses, drains, moves checkpoints, sees and replays events
    ADMIN = "admin"  # adds, changes and removes pipelines

    def covers(self, needed: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `id` is empty where a server asks nobody for tokens."""

    id: str
    name: str
    role: Role
    scope: Scope = WHOLE

    @property
    def actor(self) -> str:
        return f"{self.name} (token {self.id})" if self.id else self.name


class Tokens:
    """Any thread may call it. Each change is in the audit trail, with who ran the process that made it."""

    def __init__(self, store: InstallationStore, actor: str = "") -> None:
        self._store, self._actor = store, actor or current_actor()

    def create(
        self, name: str, role: Role, *, expires: str | None = None, scope: Scope = WHOLE
    ) -> tuple[str, StoredToken]:
        """The token itself, which is kept nowhere, and its record. `expires` is a duration such as 30d."""
        secret, token = _new(name, role, expires, scope)
        self._store.add_token(token, self._entry("create token", token))
        return secret, token

    def create_first(self) -> str | None:
        """An administrator's, if the store never had a token."""
        secret, token = _new("first start", Role.ADMIN, None)
        return secret if self._store.add_first_token(token, self._entry("create token", token)) else None

    def list(self) -> list[StoredToken]:
        return self._store.tokens()

    def revoke(self, id: str) -> None:
        found = self._store.token(id)
        if found is None or not self._store.revoke_token(
            id, _now().isoformat(timespec="seconds"), self._entry("revoke token", found)
        ):
            raise ConfigError(f'there is no token "{id}"', fix="tidemill token ls shows those that are there.")

    def authenticate(self, text: str) -> Principal | None:
        """Whose token it is; None for one that is wrong, expired or revoked."""
        found = _TOKEN.fullmatch(text)
        known = self._store.token(found[1]) if found else None
        if found is None or known is None or not hmac.compare_digest(_digest(found[2]), known.digest):
            return None
        if known.revoked_at or (known.expires_at and known.expires_at <= _now().isoformat(timespec="seconds")):
            return None
        return Principal(known.id, known.name, Role(known.role), Scope(known.tenant, known.pipeline))

    def _entry(self, action: str, token: StoredToken) -> AuditEntry:
        """Of no pipeline, so that only who may see all of them sees it."""
        whose = f"{token.id} ({token.name}): {token.role}, {Scope(token.tenant, token.pipeline)}"
        return AuditEntry(utc_now(), self._actor, action, "", whose)


@contextmanager
def open_tokens(state: str, *, create: bool = False) -> Iterator[Tokens]:
    """Those of a state store. Without `create`, `EnvironmentProblem` where there is none."""
    if not create and (found := inspect_store(state)).version == 0:
        raise EnvironmentProblem(
            "there is no state store", where=found.where,
            fix="Name the one of your server with --state or --state-dir. Its first start makes it, or "
            "`tidemill token create`.",
        )  # fmt: skip
    with closing(open_installation(state)) as store:
        yield Tokens(store)


def state_of(token: StoredToken) -> str:
    """valid, expired or revoked."""
    if token.revoked_at:
        return "revoked"
    return "expired" if token.expires_at and token.expires_at <= _now().isoformat(timespec="seconds") else "valid"


def _new(name: str, role: Role, expires: str | None, scope: Scope = WHOLE) -> tuple[str, StoredToken]:
    id, secret, now = secrets.token_hex(4), secrets.token_urlsafe(32), _now()
    until = (now + _duration(expires)).isoformat(timespec="seconds") if expires else ""
    token = StoredToken(
        id, name, str(role), _digest(secret), now.isoformat(timespec="seconds"), until, tenant=scope.tenant,
        pipeline=scope.pipeline,
    )  # fmt: skip
    return f"tm_{id}_{secret}", token


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found:
        raise ConfigError(f'"{text}" is not a duration', where="--expires", fix="Write it as 12h or 30d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC)
