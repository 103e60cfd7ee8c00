"""Proof of no loss: a random workload, processes killed at any moment, then source and destination row by row."""
