"""torch.func.functionalize: the whole program with its writes and views taken out, and its inputs written at the end.

It promises the values, dtypes and shapes of results and the content of inputs; not that results alias each other, nor,
since a written tensor is made anew, their strides (pytorch#133512).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.core import torch_compat
from conformance.core.names import ORACLES
from conformance.core.target import Capture, Target


class FunctionalizeTarget(Target):
    """Each function through `torch.func.functionalize`."""

    name = "functionalize"
    transforms_program = True
    oracles = frozenset(ORACLES) - {"kernels", "version", "alias", "storage_offset", "stride", "contiguity"}
    unsupported = frozenset(
        {
            "inputs that share a storage",
            "a write that raises",
            *("requires_grad_", "backward", "same_base", "tolist", "set_data", "set_view_", "is_contiguous"),
            *("resize_filled_", "forward_over_backward", "sparse", "state"),
        }
    )
    """The transform takes inputs for independent tensors, and writes them when the function has ended; torch documents
    that it refuses `requires_grad_`, `backward`, `.data` and `set_`, and a view's `resize_`; strides, and so
    contiguity, are not promised. (OpInfo's gradients are taken outside of the transform.)"""

    _seen = Capture()

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function without mutations; each call that torch really functionalizes is counted."""
        seen = self._seen

        def counted(*inputs: Any) -> Any:
            reached = torch_compat.in_functionalize()
            seen.graphs, seen.ops = seen.graphs + reached, seen.ops + reached
            return function(*inputs)

        transformed: Callable[..., Any] = torch.func.functionalize(counted)
        return transformed

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the calls inside of the transform."""
        self._seen = Capture()
        yield self._seen

    def script(self) -> str:
        """The transform."""
        return "DEVICE, transform = 'functionalize', torch.func.functionalize"
