"""torch.vmap against a loop: `vmap`, or `vmap:position=N` with the batched dimension of every input at N.

The program runs once, on a batch of two examples, and torch CPU runs the second example alone. vmap promises values,
dtypes, shapes, and writes to inputs. It promises no strides, since each batching rule moves the batched dimension, and
so no aliasing of results that PyTorch returns as views or copies depending on strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.declare.declaration import unsupported
from conformance.engine.target import TargetFacts, TransformingTarget
from conformance.record.errors import TargetError
from conformance.record.names import ORACLES
from conformance.standalone import torch_compat
from conformance.standalone.script import carried
from conformance.standalone.transforms import vmapped

FORM = "vmap[:position=N]"


class VmapTarget(TransformingTarget):
    """Target that runs each function under `torch.vmap`, as one of two examples."""

    name = "vmap"
    facts = TargetFacts(
        oracles=frozenset(ORACLES) - {"version", "alias", "storage_offset", "stride", "contiguity"},
        transforms_program=True,
        declarations=(
            unsupported("vmap has strided tensors only", trait="sparse"),
            unsupported("torch's messages state sizes and dimensions of the batch", variant="error_inputs"),
            unsupported("torch documents that vmap refuses out=", step="out=", trait="a call with out=", variant="out"),
            unsupported("examples of a batch cannot have different answers in Python", step="questions"),
            unsupported(
                "torch documents that vmap refuses sizes and Python numbers that depend on values",
                step=("nonzero", "masked_select", "setitem.mask", "item.error"),
                trait="an answer that depends on values",
            ),
            unsupported(
                "torch documents that vmap draws the numbers of a batched input either for each example or not at all",
                trait="random numbers",
            ),
            unsupported(
                "a step of autograd in the function belongs to the whole batch",
                step=("backward", "requires_grad_", "data"),
                trait="an input that requires grad",
            ),
            unsupported("torch checks the memory of as_strided in the whole batch", step="as_strided"),
            unsupported("checks of overlapping memory see the whole batch", trait="a write that raises"),
            unsupported(
                "the target copies inputs into a batch and back, so results do not share memory with them",
                step="shares_memory",
                trait="a caller that writes shared memory",
            ),
            unsupported("torch documents that a custom operator needs a rule for vmap", step="custom operators"),
            unsupported("torch has no batching rules for operators that write lists of tensors", step="list operators"),
            unsupported(
                "torch documents that vmap has no memory formats",
                step=("contiguous.channels_last", "clone.channels_last"),
            ),
            unsupported(
                "torch documents that vmap refuses to write batched values to a tensor that is not batched",
                step="into_host_view",
            ),
            unsupported("a batched tensor has no storage", step="empty_filled"),
            unsupported(
                "the new geometry would be that of the batch, not of the input",
                step="metadata in place",
                trait="a geometry that changes in place",
            ),
        ),
    )

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        key, _, number = argument.partition("=")
        if argument and (key != "position" or not number.isdecimal()):
            raise TargetError(f"target 'vmap:{argument}' is not understood: write {FORM}")
        self.position = int(number) if argument else None

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function under vmap; it counts each call inside the transform."""
        counted = self._seen.counting(function, lambda: torch_compat.functorch_level() is not None)
        return vmapped(counted, self.position)

    def script(self) -> str:
        """Return the transform."""
        return f"{carried(('vmapped',))}\n\n\nDEVICE, transform = 'vmap', lambda f: vmapped(f, {self.position})"
