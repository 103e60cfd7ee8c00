"""One module for each command, named like it: parse, call `service/`, render. main is the table of commands; target,
installation, terminal, run_view and snapshot_view are what several of them share."""
