"""PyTorch's operator database as test cases: planning, sampling, running one case, and isolating cases.

`plan`, `pool` and `worker` do not import torch, so a crash of a tested op cannot end the process that collects
results.
"""
