"""torch.func.functionalize: the whole program without writes and views; its inputs are written at the end.

It promises the values, dtypes and shapes of results and the content of inputs. It does not promise that results alias
each other. It promises no strides either, since it creates a new tensor for each written one (pytorch#133512).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.declare.declaration import unsupported
from conformance.engine.target import TargetFacts, TransformingTarget
from conformance.record.names import ORACLES
from conformance.standalone import torch_compat


class FunctionalizeTarget(TransformingTarget):
    """Target that passes each function through `torch.func.functionalize`."""

    name = "functionalize"
    facts = TargetFacts(
        oracles=frozenset(ORACLES) - {"version", "alias", "storage_offset", "stride", "contiguity"},
        transforms_program=True,
        of_pytorch="functionalize",
        # The variant `backward` is supported: op_db's gradients are computed outside of the transform.
        declarations=(
            unsupported(
                "the transform treats inputs as independent tensors, and writes them when the function has ended",
                trait=("inputs that share a storage", "a write that raises"),
            ),
            unsupported(
                "results need not share memory", trait="a caller that writes shared memory", step="shares_memory"
            ),
            unsupported("torch documents that the transform refuses operators that mutate", step="custom operators"),
            unsupported(
                "torch documents that the transform refuses these calls",
                step=("requires_grad_", "backward", "set_data", "set_view_", "resize_filled_"),
            ),
            unsupported("strides, and so contiguity, are not promised", step="is_contiguous"),
            unsupported(
                "the transform has no bases, values and state of Python", step=("same_base", "tolist", "state")
            ),
            unsupported("the transform has strided tensors only", trait="sparse"),
            unsupported("forward-mode derivatives do not pass through the transform", variant="forward_over_backward"),
        ),
    )

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function without mutations; it counts each call that torch really functionalizes."""
        counted = self._seen.counting(function, torch_compat.in_functionalize)
        transformed: Callable[..., Any] = torch.func.functionalize(counted)
        return transformed

    def script(self) -> str:
        """Return the transform."""
        return "DEVICE, transform = 'functionalize', torch.func.functionalize"
