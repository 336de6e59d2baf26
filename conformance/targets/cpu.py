"""torch CPU as a target: the harness against itself, which must always be green."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from conformance.core.aten_ops import AtenOps
from conformance.core.names import ORACLES
from conformance.core.target import KernelCount, Target


class CpuTarget(Target):
    name = "cpu"
    oracles = frozenset(ORACLES)

    @contextlib.contextmanager
    def kernels(self) -> Iterator[KernelCount]:
        """Count the aten ops that are not views: the bound that no fusing device should exceed."""
        count, ops = KernelCount(), AtenOps()
        with ops:
            yield count
        count.total = ops.total

    def synchronize(self) -> None:
        """The CPU has always finished."""
