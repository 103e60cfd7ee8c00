"""`tidemill bench`: speed as ratios to a baseline measured in the same run, because machines are noisy."""

from __future__ import annotations

from tidemill.lab.bench.command import app

__all__ = ["app"]
