"""torch.func.vjp against backward: the gradients of a function that torch.func transforms.

A program with inputs that require grad ends with `backward`, which runs outside of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.declare.declaration import unsupported
from conformance.engine.target import TargetFacts, TransformingTarget
from conformance.record.names import ORACLES
from conformance.standalone.script import carried
from conformance.standalone.transforms import by_vjp, differentiated


class GradTarget(TransformingTarget):
    """Target whose gradients come from `torch.func.vjp`."""

    name = "grad"
    derive = staticmethod(by_vjp)
    facts = TargetFacts(
        oracles=frozenset(ORACLES) - {"version", "alias", "storage_offset", "stride", "contiguity", "storage"},
        transforms_program=True,
        differentiates=True,
        declarations=(
            unsupported("a sparse tensor has no elements to differentiate along", trait="sparse"),
            unsupported("the gradients have no graph", variant="forward_over_backward"),
            unsupported(
                "torch documents that out= has no derivative", step="out=", trait="a call with out=", variant="out"
            ),
            unsupported("copies of the inputs share no storage", trait="inputs that share a storage"),
            unsupported(
                "a step of autograd belongs to the transform",
                step=("requires_grad_", "data"),
                trait=("a backward inside", "a write that raises"),
            ),
            unsupported("the transform has no storages", step=("empty_filled", "metadata in place", "state")),
            unsupported("torch documents that Python answers under the transform are plain", step="questions"),
        ),
    )

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with gradients of the transform; it counts the runs that are differentiated."""
        return differentiated(function, self._seen.counting(self.derive))

    def script(self) -> str:
        """Return the transform."""
        derive = self.derive.__name__
        code = carried(("differentiated", derive))
        return f"{code}\n\n\nDEVICE, transform = {self.name!r}, lambda f: differentiated(f, {derive})"
