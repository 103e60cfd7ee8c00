"""Pipelines as a service: documents, what operators want of them, tokens, restarts.

control       what the API and a worker call
document_set  all documents, from files (watched_files) and from the API; shared_documents those of other servers
managed       one pipeline: its document and what an operator wants of it
fleet         pipelines while they run; scheduled those that run by cron
restarts      starts after a failure; repeated is the thread that looks again and again
tokens        who may ask for what; scope which pipelines a token is for
worker        one pipeline in a process of its own
"""
