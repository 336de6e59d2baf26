"""torch.export: the whole program exported, saved, loaded and run.

An exported program has no writes inside. Its inputs are written at the end. It promises the values, dtypes and shapes
of results and the content of inputs; it does not promise strides, or that results alias each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.declare.declaration import unsupported
from conformance.engine.target import TargetFacts, TransformingTarget
from conformance.record.names import ORACLES
from conformance.standalone.script import carried
from conformance.standalone.transforms import exported


class ExportTarget(TransformingTarget):
    """Target that exports each function, and runs the exported program after it was saved and loaded."""

    name = "export"
    facts = TargetFacts(
        oracles=frozenset(ORACLES)
        - {"kernels", "version", "alias", "storage_offset", "stride", "contiguity", "storage"},
        transforms_program=True,
        declarations=(
            unsupported("torch.export has strided tensors only", trait="sparse"),
            unsupported("the gradients have no graph", variant="forward_over_backward"),
            unsupported("torch's messages state what export has replaced", variant="error_inputs"),
            unsupported(
                "a step of autograd is no part of an exported program",
                step=("requires_grad_", "backward", "data"),
                trait="a backward inside",
            ),
            unsupported(
                "the exported program takes each input as memory of its own", trait="inputs that share a storage"
            ),
            unsupported("a call that raises in the trace stays in the exported program", trait="a step that raises"),
            unsupported(
                "torch documents that export refuses sizes and answers that depend on values",
                trait="an answer that depends on values",
            ),
            unsupported("an exported program has no storages", step=("empty_filled", "metadata in place", "state")),
            unsupported("answers in Python belong to the trace", step="questions"),
        ),
    )

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the exported function; it counts each call that torch.export traces."""
        seen = self._seen

        def counted(*inputs: Any) -> Any:
            reached = torch.compiler.is_exporting()
            seen.graphs, seen.ops = seen.graphs + reached, seen.ops + reached
            return function(*inputs)

        return exported(counted)

    def script(self) -> str:
        """Return the transform."""
        return f"{carried(('exported',))}\n\n\nDEVICE, transform = 'export', exported"
