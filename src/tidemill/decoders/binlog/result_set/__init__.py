"""Rows of a SELECT in the binary protocol, as blocks: rows for the snapshot reader, kernels beneath it."""
