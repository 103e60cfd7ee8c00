"""The gRPC face of a server: the same control plane, tokens and roles as REST, over HTTP/2."""

import os

# Read by gRPC when it is imported. Its handlers hold up a fork and write a line to standard error for each; what a
# server forks executes another program at once, which has nothing of gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
