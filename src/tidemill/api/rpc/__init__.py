"""The gRPC face of a server: the same control plane, tokens and roles as REST, over HTTP/2."""
