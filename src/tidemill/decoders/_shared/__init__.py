"""Kernels and columns that every decoder needs."""
