"""`inductor`: torch.compile with Inductor on the CPU, which generates C++ for the whole function, random numbers
excepted: those come from torch's own kernels, so that one seed gives both sides the same."""

from __future__ import annotations

from conformance.targets.aot_eager import AotEagerTarget


class InductorTarget(AotEagerTarget):
    """`compile:inductor` by its former name."""

    name = "inductor"
