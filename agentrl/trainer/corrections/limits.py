"""Bounds that numpy and torch code share. Imports neither."""

LOG_RATIO_BOUND = 20.0
"""Ratios are held within e^-20 and e^20: no threshold in use lies outside, and float32 overflows at e^88."""
