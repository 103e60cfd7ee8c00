"""Where delivery stands.

commit_policy  which sinks move together in a group, and where that puts the checkpoint
ledger         keeps the positions of all groups, and what follows from them
pins           Spark's directory against our checkpoint; pin_file is the batch under way in real time
"""
