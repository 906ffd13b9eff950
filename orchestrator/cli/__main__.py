"""`python -m orchestrator.cli`, as the command `tinyattn`."""

from orchestrator.cli import main

main()
