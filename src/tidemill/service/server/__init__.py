"""Pipelines as a service: documents, what operators want of them, tokens, restarts."""
