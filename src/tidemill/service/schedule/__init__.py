"""Pipelines that run by cron: which slots are due, the durable queue of their runs, and one run from start to end.

DBOS is imported by `run_queue` alone (ADR 55).
"""
