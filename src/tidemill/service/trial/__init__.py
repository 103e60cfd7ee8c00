"""A pipeline's processors over a few events, without a sink."""
