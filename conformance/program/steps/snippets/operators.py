"""Custom operators that mutate their arguments."""

from __future__ import annotations

import torch


@torch.library.custom_op("conformance::add_to", mutates_args=("to",), schema="(Tensor(a!) to, Tensor other) -> ()")
def add_to(to: torch.Tensor, other: torch.Tensor) -> None:
    """Add in place: a custom operator that mutates its first argument."""
    to.add_(other)


@torch.library.custom_op("conformance::exchange", mutates_args=("pair",), schema="(Tensor(a!)[] pair) -> ()")
def exchange(pair: list[torch.Tensor]) -> None:
    """Exchange the values of two tensors: a custom operator that mutates both."""
    kept = pair[0].clone()
    pair[0].copy_(pair[1])
    pair[1].copy_(kept)


@torch.library.custom_op(
    "conformance::add_to_all", mutates_args=("every",), schema="(Tensor(a!)[] every, Tensor other) -> ()"
)
def add_to_all(every: list[torch.Tensor], other: torch.Tensor) -> None:
    """Add to each tensor of a list: a custom operator that mutates a list, and reads a tensor."""
    for tensor in every:
        tensor.add_(other)
