"""Targets that leave out some programs, or all of them."""

from __future__ import annotations

from conformance.core.target import Target
from conformance.selftest.mutants import MutantTarget


class Choosy(MutantTarget):
    """torch CPU whose transposes go stale. It leaves out programs of gradients or of inputs that share a storage."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("transpose is stale")
        self.spec = "class:tests.planted.choosy.Choosy"
        self.unsupported = frozenset({"an input that requires grad", "inputs that share a storage"})


class Refusing(Target):
    """torch CPU without any dtype that a program holds."""

    name = "refusing"
    dtypes = frozenset()
