"""Sandboxes that are pods of a Kubernetes cluster: plain ones, or claims of agent-sandbox's warm pools.

A pod runs `run.sh pause`, and each operation is one command of `pods/exec`. `evidence` says what a pod's end means,
`calls` carries operations, `sandbox` makes of them what every provider's sandbox can do.
"""
