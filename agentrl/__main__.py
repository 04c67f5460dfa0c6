"""`python -m agentrl` is the `agentrl` command."""

from agentrl.cli.main import main

main()
