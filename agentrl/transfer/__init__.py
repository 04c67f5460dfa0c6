"""Weights on their way from the trainer's rank 0 to an engine: process groups, handles, digests, for both ends."""
