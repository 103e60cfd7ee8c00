"""`python -m tidemill`: the commands, with the interpreter that is meant."""

from tidemill.cli.main import main

main()
