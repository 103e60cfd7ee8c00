"""Versions of tables, schema changes and decisions on them, what was inferred from events."""
