"""torch.func.functionalize: the whole program without writes and views; its inputs are written at the end.

It promises the values, dtypes and shapes of results and the content of inputs. It does not promise that results alias
each other. It promises no strides either, since it creates a new tensor for each written one (pytorch#133512).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.engine.target import Capture, Target
from conformance.record.names import ORACLES
from conformance.standalone import torch_compat


class FunctionalizeTarget(Target):
    """Target that passes each function through `torch.func.functionalize`."""

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
    """Features that the transform does not support. It treats inputs as independent tensors, and writes them when the
    function has ended. torch documents that it refuses `requires_grad_`, `backward`, `.data` and `set_`, and a view's
    `resize_`. Strides, and so contiguity, are not promised. (OpInfo's gradients are computed outside of the transform.)
    """

    _seen = Capture()

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function without mutations; it counts each call that torch really functionalizes."""
        seen = self._seen

        def counted(*inputs: Any) -> Any:
            reached = torch_compat.in_functionalize()
            seen.graphs, seen.ops = seen.graphs + reached, seen.ops + reached
            return function(*inputs)

        transformed: Callable[..., Any] = torch.func.functionalize(counted)
        return transformed

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the calls inside the transform."""
        self._seen = Capture()
        yield self._seen

    def script(self) -> str:
        """Return the transform."""
        return "DEVICE, transform = 'functionalize', torch.func.functionalize"
