"""Whether swing GPUs generate or train, and what every GPU's time went to."""
