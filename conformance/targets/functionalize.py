"""torch.func.functionalize: the whole program with its writes and views taken out, and its inputs written at the end.

It promises the values, dtypes and shapes of results and the content of inputs; not that results alias each other, nor,
since a written tensor is made anew, their strides (pytorch#133512).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.core.names import ORACLES
from conformance.core.target import Target


class FunctionalizeTarget(Target):
    name = "functionalize"
    transforms_program = True
    oracles = frozenset(ORACLES) - {"kernels", "version", "alias", "storage_offset", "stride", "contiguity"}
    unsupported = frozenset(
        {
            "inputs that share a storage",
            "a write that raises",
            "requires_grad_",
            "backward",
            "same_base",
            "tolist",
            "set_data",
            "set_view_",
            "is_contiguous",
            "resize_filled_",
        }
    )
    """The transform takes inputs for independent tensors, and writes them when the function has ended; torch documents
    that it refuses `requires_grad_`, `backward`, `.data` and `set_`, and a view's `resize_`; strides, and so
    contiguity, are not promised."""

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function without mutations."""
        transformed: Callable[..., Any] = torch.func.functionalize(function)
        return transformed

    def script(self) -> str:
        """The transform."""
        return "DEVICE, transform = 'functionalize', torch.func.functionalize"
