"""`aot_eager`: torch.compile with Dynamo and AOTAutograd, followed by torch's own kernels, without a code generator."""

from __future__ import annotations

from conformance.record.errors import TargetError
from conformance.targets.compiler import CompileTarget


class AotEagerTarget(CompileTarget):
    """`compile:aot_eager` under its former name."""

    name = "aot_eager"

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise TargetError(f"target {self.name!r} takes no argument, but got {argument!r}: write just {self.name!r}")
        super().__init__(self.name)
