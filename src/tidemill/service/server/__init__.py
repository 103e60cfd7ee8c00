"""Pipelines as a service: documents, what operators want of them, tokens, restarts.

control       what the API and a worker call; lifecycle has what operators ask of pipelines
document_set  all documents, from files (watched_files) and from the API; shared_documents those of other servers
elsewhere     pipelines that other processes run: status_board how they are, requests what they are asked for
dispatch      workers that a server starts itself
local         the same from the state store alone, for commands without a server
managed       one pipeline: its document and what an operator wants of it
fleet         pipelines while they run; scheduled those that run by cron
restarts      starts after a failure; repeated is the thread that looks again and again
start_pace    how many pipelines start at a time; reload reads files again
tokens        who may ask for what; scope which pipelines a token is for
worker        one pipeline in a process of its own
"""
