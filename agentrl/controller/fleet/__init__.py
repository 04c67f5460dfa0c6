"""The engines as one: where episodes sample, how weights are published, and which engine is believed."""
