"""Copies of tables: which are due, the driver that has them read, what operators ask for."""
