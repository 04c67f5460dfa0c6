"""The trainer: a torchrun job that pulls batches from the controller. `job` and `config` import without torch."""
