"""What this machine offers to a run, what that makes weaker, and the command that fixes it."""
