"""torch's decompositions into core ATen operators, which exporters rely on, run by torch CPU under a dispatch mode.

Below autograd, each call of an operator in the table runs its decomposition. The mode is active in a backward pass too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from conformance.declare.declaration import unsupported
from conformance.engine.target import Capture, Target, TargetFacts
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.standalone import torch_compat
from conformance.standalone.script import carried
from conformance.standalone.transforms import DecompositionMode


class DecompositionsTarget(Target):
    """Torch CPU with the core ATen decompositions in place of the operators' own kernels."""

    name = "decompositions"
    facts = TargetFacts(
        oracles=frozenset(ORACLES) - {"version", "stride"} | {SIGNIFICANT_STRIDE},
        declarations=(unsupported("the decompositions read strides, which sparse tensors lack", trait="sparse"),),
        of_pytorch="decompositions",
    )

    def prepare(self) -> None:
        """Load the table."""
        self.mode = DecompositionMode(torch_compat.core_decompositions())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of a step, in the mode."""
        with self.mode:
            yield

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the calls that ran a decomposition."""
        seen, before = Capture(), self.mode.replaced
        yield seen
        seen.graphs = seen.ops = self.mode.replaced - before

    def script(self) -> str:
        """Return the mode."""
        return (
            f"from torch._decomp import core_aten_decompositions\n{carried(('DecompositionMode',))}\n\n\n"
            "DEVICE, MODE = 'cpu', DecompositionMode(core_aten_decompositions())"
        )
