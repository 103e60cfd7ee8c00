"""Spark's side of loop two: the session and the processes it starts, and the log as a source of Spark's.

session   a Spark session whose small batches are cheap, as settings says; gateway starts its Java, with class_archive
          in half the time, daemon is the parent of its Python workers, early/ lets a planning process start slowly
source    the streaming source of micro-batches: its rows are receipts
epochs    the stream of epochs in real time, whose tasks stand
rowview   the log as typed Spark rows (rowtypes), for SQL and notebooks
"""
