"""Norms and their gradients."""

from __future__ import annotations

import pytest
import torch

import conformance.backend as backend


class TestWeightNorm:
    """torch._weight_norm, which torch.nn.utils.parametrizations.weight_norm calls."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    @pytest.mark.parametrize("dim", [0, 2])
    def test_gradients_are_those_of_torch_cpu(self, dim: int, dtype: torch.dtype) -> None:
        """Gradients agree in values, dtypes and strides, without a fallback. They formerly ran on the CPU."""
        torch.manual_seed(0)
        shape = [1, 1, 1]
        shape[dim] = 3 + dim
        leaves = torch.randn(3, 4, 5).to(dtype), torch.rand(shape).to(dtype)
        factor, results = torch.randn(3, 4, 5).to(dtype), []
        for device in ("cpu", "tiny"):
            v, g = (leaf.to(device).detach().requires_grad_() for leaf in leaves)
            backend.reset_stats()
            (torch._weight_norm(v, g, dim) * factor.to(device)).sum().backward()
            assert v.grad is not None
            assert g.grad is not None
            results.append((v.grad.cpu(), g.grad.cpu()))
        assert not backend.stats()["fallback"]
        rounding = 16 * torch.finfo(dtype).eps  # sums of a dozen products, in another order than torch CPU's
        for expected, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected, rtol=rounding, atol=rounding)
            assert ours.stride() == expected.stride()
