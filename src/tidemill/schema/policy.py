"""What is to happen at a schema change, by table and kind; and whether an operator is asked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.model.schema_change import UNSEEN_KINDS, SchemaChange, SchemaChangeKind
from tidemill.model.tablenames import TableNames
from tidemill.schema.view import NEVER_IGNORED


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """Without kinds it is about all. `action` is evolve, try_evolve, ignore, quarantine or halt."""

    tables: TableNames
    kinds: frozenset[SchemaChangeKind]
    action: str

    def spares(self, kind: SchemaChangeKind) -> bool:
        """Whether the kind must be named: a table that is met first is no reason to wait unless somebody says so."""
        return self.action in ("quarantine", "halt") and kind is SchemaChangeKind.CREATE_TABLE


@dataclass(frozen=True, slots=True)
class ChangeVerdict:
    """The kinds of a change that stop the pipeline, that are not made at the sinks, that are not made at a sink which
    cannot, and that let the table wait. `asks`: the gate is closed."""

    halting: frozenset[SchemaChangeKind] = frozenset()
    ignored: frozenset[SchemaChangeKind] = frozenset()
    tried: frozenset[SchemaChangeKind] = frozenset()
    asks: bool = False
    quarantined: frozenset[SchemaChangeKind] = frozenset()

    @property
    def waits(self) -> bool:
        """It is not made before somebody decides."""
        return bool(self.halting or self.quarantined or self.asks)

    @property
    def action(self) -> str:
        """In a word, the strictest first."""
        if self.halting:
            return "halt"
        if self.quarantined:
            return "quarantine"
        if self.asks:
            return "ask"
        return "ignore" if self.ignored else "try_evolve" if self.tried else "evolve"


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """`gate`: ask an operator, unless all kinds are approved beforehand or ignored. `ignores_rejected`: go on with the
    old structure after a rejection. `flush_seconds`: for how long a sink may fail at a change. `decision_seconds`: for
    how long an operator may be waited for; None if there is no end to it."""

    rules: tuple[ChangeRule, ...] = ()
    gate: bool = False
    auto_approve: frozenset[SchemaChangeKind] = frozenset()
    ignores_rejected: bool = False
    flush_seconds: float = 60.0
    decision_seconds: float | None = None

    @property
    def quarantines(self) -> bool:
        """Whether a table may have to wait."""
        return any(rule.action == "quarantine" for rule in self.rules)

    def judge(self, change: SchemaChange) -> ChangeVerdict:
        """The first rule that names the table and a kind counts for that kind; what none names is evolved. A kind that
        cannot be ignored stops the pipeline, except that a new table is always made."""
        actions = {kind: self._action(change, kind) for kind in change.kinds}
        ignored = frozenset(kind for kind, action in actions.items() if action == "ignore")
        halting = frozenset(kind for kind, action in actions.items() if action == "halt")
        halting |= (ignored & NEVER_IGNORED) - {SchemaChangeKind.CREATE_TABLE}
        ignored -= NEVER_IGNORED
        tried = frozenset(kind for kind, action in actions.items() if action == "try_evolve") - NEVER_IGNORED
        # Nobody is asked about what no sink makes; who wants to stop there has `halt`.
        asks = self.gate and bool(change.kinds - self.auto_approve - ignored - set(UNSEEN_KINDS.values()))
        quarantined = frozenset(kind for kind, action in actions.items() if action == "quarantine")
        return ChangeVerdict(halting, ignored, tried, asks, quarantined)

    def _action(self, change: SchemaChange, kind: SchemaChangeKind) -> str:
        for rule in self.rules:
            named = kind in rule.kinds if rule.kinds else not rule.spares(kind)
            if named and rule.tables.match(change.table):
                return rule.action
        return "evolve"


def list_kinds(kinds: Sequence[SchemaChangeKind] | frozenset[SchemaChangeKind]) -> str:
    """`add column, drop column`"""
    return ", ".join(sorted(str(kind).replace("_", " ") for kind in kinds)) or "no column"
