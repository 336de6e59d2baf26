"""Quantized tensors, read as plain ones: a program holds and compares plain tensors only."""

from __future__ import annotations

import torch


def quantized_integers(tensor: torch.Tensor, scale: float, zero: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the integers of a tensor that is quantized with one scale."""
    return torch.quantize_per_tensor(tensor, scale, zero, dtype).int_repr()


def quantized_channels(
    tensor: torch.Tensor, scales: list[float], zeros: list[int], axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the integers of a tensor that is quantized with a scale for each place along `axis`."""
    scale = torch.tensor(scales, dtype=torch.float64, device=tensor.device)
    zero = torch.tensor(zeros, device=tensor.device)
    return torch.quantize_per_channel(tensor, scale, zero, axis, dtype).int_repr()


def requantized(tensor: torch.Tensor, scale: float, zero: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor quantized with one scale and back."""
    return torch.quantize_per_tensor(tensor, scale, zero, dtype).dequantize()
