"""Servers beside PostgreSQL, as fixtures: a test imports the ones it wants."""
