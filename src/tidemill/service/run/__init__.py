"""One pipeline while it runs: its capture process, its streams, its state, and who hears of it."""
