"""PyTorch's operator database as test cases: planning, sampling, running one case, and isolating it from the others.

`plan`, `isolation` and `worker` do not import torch, so that the process that collects results survives what it tests.
"""
