"""What several decoders need.

sides         what every block has beside its images
eight_bytes   bytes eight at a time, for kernels; crc32 the checksum of events
calendar      days and times of transactions; decimal_text numbers of fixed point
mysql         what the binlog and the history of tables both need
"""
