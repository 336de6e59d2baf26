"""Predicates on the first tensor of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.program.steps.draw import category

Fits = Callable[[torch.Tensor], bool]


def always(t: torch.Tensor) -> bool:
    """Any tensor."""
    return True


def has_dims(least: int) -> Fits:
    """Tensors of at least `least` dimensions."""
    return lambda t: t.dim() >= least


def number_like(t: torch.Tensor) -> bool:
    """Tensors of integers or floats, neither bool nor complex."""
    return category(t.dtype) in (1, 2)


def numeric(t: torch.Tensor) -> bool:
    """Tensors of numbers, including complex ones."""
    return category(t.dtype) > 0


def signed(t: torch.Tensor) -> bool:
    """Tensors of signed integers or floats."""
    return number_like(t) and t.dtype.is_signed


def negatable(t: torch.Tensor) -> bool:
    """Tensors of signed integers, floats or complex numbers."""
    return t.is_complex() or signed(t)


def floating(t: torch.Tensor) -> bool:
    """Tensors of floats."""
    return t.dtype.is_floating_point


def small_floats(t: torch.Tensor) -> bool:
    """Tensors of floats of at most 8, whose exponential is not large."""
    return floating(t) and not bool((t.detach() > 8).any())


def filled(t: torch.Tensor) -> bool:
    """Tensors with at least one dimension and one element."""
    return t.dim() > 0 and t.numel() > 0


def filled_numbers(t: torch.Tensor) -> bool:
    """Tensors of integers or floats with at least one dimension and one element."""
    return filled(t) and number_like(t)


def matrix(t: torch.Tensor) -> bool:
    """2-d tensors that are not empty."""
    return t.dim() == 2 and t.numel() > 0


def wants_grad(t: torch.Tensor) -> bool:
    """Tensors that require grad."""
    return t.requires_grad


def has_graph(t: torch.Tensor) -> bool:
    """Whether the tensor is the result of an operator of the autograd graph."""
    return t.requires_grad and t.grad_fn is not None
