"""The nouns: table, types, position, block, delivery. No I/O.

table          a table at one version; types are those of its columns, postgres_types those of PostgreSQL
tablenames     patterns of names
position       where an event stands; identity what names it, clock the time of day
block          one table's run of changes, columnar; columns is between numpy and Arrow, odd what a type cannot hold
change         what a decoder hands to the loop; barrier why a batch must end there
schema_change  what became of a table; quarantine a table whose rows wait for a decision
snapshot       chunks of a table; unlogged rows that are not in the log
derived        what processors make of blocks; route where an event goes, template how names are made of it
keyhash        a number for each row's key; rowkeys the keys themselves, to be compared
delivery       what a sink is given and what it returns; cloudevents the attributes of an event
drift          kinds of difference between events and what was declared
config         the base of every configuration model
"""
