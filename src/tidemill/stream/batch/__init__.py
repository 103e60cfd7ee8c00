"""One batch, as the driver sees it.

admission  when a batch is worth taking, where it ends, how many lanes it gets
ordering   how many lanes sinks and processors allow, and by what rows are spread
lanes      which rows go to which lane; plan is what travels to the tasks
attempt    what came back from the lanes, and what to send again; failures says why
"""
