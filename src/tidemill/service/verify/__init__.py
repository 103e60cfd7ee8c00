"""Rows of a sink compared with those of the source, and put right."""
