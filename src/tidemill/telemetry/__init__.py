"""Named events, named points. What the parts say of themselves, and where a crash test may stop them."""
