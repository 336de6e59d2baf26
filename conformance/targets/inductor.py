"""torch.compile with Inductor on the CPU: all that `aot_eager` has, and C++ that is generated for the whole program."""

from __future__ import annotations

from conformance.core.errors import TargetError
from conformance.targets.aot_eager import AotEagerTarget


class InductorTarget(AotEagerTarget):
    name = "inductor"

    def prepare(self) -> None:
        """Look for a C++ compiler as Inductor does, and compile one function with it."""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except (InvalidCxxCompiler, RuntimeError, OSError) as error:
            raise TargetError(
                "inductor needs a C++ compiler and finds none: install g++, or name one in the environment variable CXX"
            ) from error
        super().prepare()
