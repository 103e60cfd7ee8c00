"""Bytes to Arrow blocks. No I/O: what a decoder cannot know from the bytes is passed in."""
