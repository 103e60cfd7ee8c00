"""What the parts say of themselves: named events with their context, metrics. And where a crash test may stop them."""
