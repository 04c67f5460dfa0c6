"""A run from its first check to its summary: directory, processes, recovery, real edges."""
