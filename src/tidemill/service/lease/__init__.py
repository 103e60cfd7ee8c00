"""Which process may run a pipeline: leases, and who holds one."""
