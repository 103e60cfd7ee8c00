"""What the binlog and the history of tables both need of MySQL and MariaDB. No I/O; what sources use of it
`binlog` and `mysql_schema` export.

table_lookup  what the decoder of the binlog asks of the history: tables' structures, and what statements did to them
table_map     TABLE_MAP events: physical types of a table's columns; fields reads such events
types         types of columns, in Arrow and in JSON; charsets the character sets of their text
fill          values of columns that an INSERT left out of its image
gtid          sets of global transaction ids; place is how far a stream has come
session       what a statement's session was set to
"""
