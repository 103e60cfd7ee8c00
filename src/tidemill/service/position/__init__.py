"""Where the sinks of a pipeline stand, and places in its log as operators name them."""
