"""Private servers, started and stopped by us: for the demo, the benches and the tests. Never for production."""
