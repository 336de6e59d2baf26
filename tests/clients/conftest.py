"""A fixture that trains a third-party module on the CPU and on tiny, and compares the losses.

The key insight: tiny draws the same random numbers as the CPU. Dropout and augmentation therefore stay unchanged, and a
wrong gradient shows in the loss of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import conformance.backend as backend

STEPS = 3

Agree = Callable[..., None]


@pytest.fixture
def agree() -> Iterator[Agree]:
    """`agree(make, loss, inputs)`: three steps on tiny have the losses of the CPU, and each step changes the loss.

    `make` returns a module, `loss(model, *inputs)` returns a scalar, and `inputs` is a tuple of CPU tensors.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    # Without it `Module.to` copies a shared parameter once for each user, as on every out-of-tree device.
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield _agree
    torch.__future__.set_swap_module_params_on_conversion(before)


def _agree(
    make: Callable[[], nn.Module], loss: Callable[..., Tensor], inputs: tuple[Any, ...], *, lr: float = 0.1
) -> None:
    expected = _losses("cpu", make, loss, inputs, lr)
    actual = _losses("tiny", make, loss, inputs, lr)
    assert len(set(expected.tolist())) == STEPS, "the steps do not change the loss, so they show nothing"
    torch.testing.assert_close(actual, expected)


def _losses(
    device: str, make: Callable[[], nn.Module], loss: Callable[..., Tensor], inputs: tuple[Any, ...], lr: float
) -> Tensor:
    torch.manual_seed(0)
    model = make().to(device).train()
    tensors = [tensor.to(device) for tensor in inputs]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    before = backend.stats()["kernels"]
    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.zero_grad()
        value = loss(model, *tensors)
        value.backward()
        optimizer.step()
        assert value.device.type == device
        losses.append(value.detach().cpu())
    assert (backend.stats()["kernels"] > before) == (device == "tiny")
    return torch.stack(losses)
