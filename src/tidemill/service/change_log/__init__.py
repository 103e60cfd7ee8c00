"""What is in a change log, for people."""
