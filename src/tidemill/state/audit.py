"""The audit trail's rows: written alone, or in the transaction of what they are about."""

from __future__ import annotations

from tidemill.contracts.installation import AuditEntry
from tidemill.state.migrations import Rows

KEPT_AUDIT = 10_000
"""Of each actor: who does the same thing over and over pushes out what he did himself, and nothing of others."""
KEPT_IN_ALL = 200_000
PRUNED_EVERY = 100
"""Entries, after which those that are too many go: it is a look at all of them."""
INSTALLATION = "installation"
"""Writers of what belongs to no pipeline take turns."""


def append_audit(run: Rows, entry: AuditEntry) -> None:
    """In a transaction that has `INSTALLATION`."""
    ((last,),) = run("SELECT COALESCE(MAX(sequence), 0) FROM audit")
    run(
        "INSERT INTO audit (sequence, at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
        last + 1, entry.at, entry.actor, entry.action, entry.subject, entry.detail,
    )  # fmt: skip
    if (last + 1) % PRUNED_EVERY == 0:
        run(
            "DELETE FROM audit WHERE sequence <= ? OR sequence IN (SELECT sequence FROM (SELECT sequence,"
            " ROW_NUMBER() OVER (PARTITION BY actor ORDER BY sequence DESC) AS place FROM audit) numbered"
            " WHERE place > ?)",
            last + 1 - KEPT_IN_ALL, KEPT_AUDIT,
        )  # fmt: skip
