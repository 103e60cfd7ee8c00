"""The nouns: table, types, position, block, delivery. No I/O, no configuration."""
