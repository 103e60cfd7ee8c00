"""The audit trail's rows: written alone, or in the transaction of what they are about."""

from __future__ import annotations

from tidemill.contracts.installation import AuditEntry
from tidemill.state.migrations import Rows

KEPT_AUDIT = 10_000
INSTALLATION = "installation"
"""Writers of what belongs to no pipeline take turns."""


def append_audit(run: Rows, entry: AuditEntry) -> None:
    """In a transaction that has `INSTALLATION`."""
    ((last,),) = run("SELECT COALESCE(MAX(sequence), 0) FROM audit")
    run(
        "INSERT INTO audit (sequence, at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
        last + 1, entry.at, entry.actor, entry.action, entry.subject, entry.detail,
    )  # fmt: skip
    run("DELETE FROM audit WHERE sequence <= ?", last + 1 - KEPT_AUDIT)
