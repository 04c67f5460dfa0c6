"""Everything that speaks to a Kubernetes API server: the only package that imports `kubernetes`, and only when used."""
