"""`inductor`: torch.compile with Inductor on the CPU, which generates C++ for the whole function.

Random numbers come from torch's own kernels, so that one seed gives both sides the same numbers.
"""

from __future__ import annotations

from conformance.targets.aot_eager import AotEagerTarget


class InductorTarget(AotEagerTarget):
    """`compile:inductor` under its former name."""

    name = "inductor"
