"""How good given weights are: in a run on its held-out tasks, and apart from it by `agentrl eval`."""
