"""Events that are delivered again: dead letters, and ranges of the log."""
