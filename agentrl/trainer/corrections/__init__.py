"""What makes old or mismatched tokens safe to train on: one file a family, one small function a correction.

Three policies give a token three log-probs. mu, behaviour: the engine that sampled it, under the version that it then
served. q, proximal: the trainer's weights at the start of the step. pi, current: the trainer's weights now. Their
ratios are B = q / mu (age and numerics), U = pi / q (what this step has changed) and E = pi / mu.

Axes: N sampled tokens, S episodes. Everything here works on any part of a batch that holds whole episodes, so that
ranks and micro-batches give the same numbers as the batch at once.
"""
