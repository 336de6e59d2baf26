"""Pooling: the results' values are in op_db; here, how they relate to their inputs."""

from __future__ import annotations

import pytest
import torch

from tests.backend.agreement import both


class TestMaxPool1d:
    """torch CPU's kernel without gradients returns no view, torch's composite form a view of a hidden tensor."""

    def test_it_is_no_view(self) -> None:
        """A view of the result then follows its `requires_grad`. Seed 0, program 599: the view had no gradient."""

        def program(device: str) -> list[object]:
            pooled = torch.nn.functional.max_pool1d(torch.arange(6.0, device=device).view(2, 3), 2, 1)
            flat = pooled.reshape(4)
            pooled.requires_grad_()
            return [pooled._is_view(), flat.requires_grad, flat.tolist()]

        assert program("tiny") == program("cpu")

    @pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
    def test_gradients_remain(self, context: type) -> None:
        """With gradients, torch CPU uses the composite form too."""

        def program(device: str) -> list[object]:
            x = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
            with context():
                pooled = torch.nn.functional.max_pool1d(x, 2, 1)
            if pooled.requires_grad:
                pooled.sum().backward()
            return [pooled._is_view(), pooled.requires_grad, None if x.grad is None else x.grad.tolist()]

        assert program("tiny") == program("cpu")

    def test_forward_derivatives_remain(self) -> None:
        """A dual tensor requires no grad."""

        def program(device: str) -> torch.Tensor:
            x = torch.arange(6.0, device=device).view(2, 3)
            pool = torch.nn.functional.max_pool1d
            return torch.func.jvp(lambda x: pool(x, 2, 1), (x,), (x + 1,))[1]

        both(program)
