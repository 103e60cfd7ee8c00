"""What the publication delivers, compared while the stream goes on.

published  what it delivers, as the catalog has it at one moment
watch      a thread that looks again every few seconds; compare says what became of the tables in between
marks      tables whose copy at the destinations is not the table any more
notices    what is so now and should be known: tables that are not published, filters, patterns without a table
triggers   whether event triggers tell each change of the tables, and since when
keys       which primary keys the tables had, look by look
"""
