"""The embedded engine: a CPU inference server that speaks SGLang's native HTTP API.

`python -m agentrl.inference.embedded --help`. One process has two threads: the asyncio front (`server`) and the torch
thread (`worker`), which owns the model, the KV cache and the scheduler. What to compute next is decided by pure state
machines (`scheduler`, `prefix`); torch is imported only by the modules that compute.
"""
