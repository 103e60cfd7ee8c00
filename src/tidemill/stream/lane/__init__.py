"""What one lane of a batch does, in a Spark worker. The driver's side is `tidemill.stream` itself.

deliver     read the lane's blocks, process, write to every sink, return receipts; pool keeps sinks and processors
processing  one pass of the processors over the lane's share: chain runs them over its rows (rows), into a spool
views       rows as a sink sees them whose tables do not follow every change
later       rows from before a schema change of their transaction, with the names that columns have after it
sensing     what the events are like
poison      dead letters of events that a sink will never take
trace       spans of a lane's steps, where traces are asked for
standing    a lane that stays for a whole epoch, in real time; memory gives back what it needs no more at rest
"""
