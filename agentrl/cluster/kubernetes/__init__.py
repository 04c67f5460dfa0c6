"""A run as Kubernetes objects: pure functions make them, `cluster` and `submit` send them."""
