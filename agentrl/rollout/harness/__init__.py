"""A harness as an agent: a program of somebody else's, which asks an OpenAI-compatible endpoint of the run."""
