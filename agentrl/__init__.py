"""agentrl: agentic reinforcement learning of language models in sandboxes, from one YAML file."""

__version__ = "0.1.0"
