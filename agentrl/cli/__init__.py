"""The command line: one module a command group. Parse, call, print, exit code."""
