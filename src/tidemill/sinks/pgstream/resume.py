"""What the pgstream sink has delivered: in `tidemill_positions` of the target, in one transaction with its messages."""

from __future__ import annotations

from tidemill.sinks._shared.pg_resume import PlanChanged, Positions, PostgresResumption
from tidemill.sinks._shared.resume_scheme import ResumeScheme

__all__ = ["RESUME", "PlanChanged", "Positions", "PostgresResumption"]

RESUME = ResumeScheme(
    kept_in="the table tidemill_positions",
    bound_by="one transaction with the events",
    replay="skipped, event by event",
    resumption=PostgresResumption,
)
