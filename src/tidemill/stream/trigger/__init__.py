"""How the loop gets batches, and how each gets to its lanes.

callback     what Spark calls with a batch of its query
dispatch     what the loop needs of both: one batch to its lanes, and the results back
micro_batch  Spark plans each batch and calls back with it
realtime     the driver plans, and sends each batch to lanes that stand (ADR 43)
growth       how many of them: more over a backlog (ADR 67)
interpreter  how soon those who feed them get the interpreter, of which there is one
epoch_turns  how many epochs of a process begin at a time
standing     the driver's side of those lanes; channel is the connection to one, beats keeps all of them alive
"""
