"""Dead letters: what a sink will never take, kept with its reason."""
