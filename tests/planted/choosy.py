"""Targets that declare some or all programs unsupported."""

from __future__ import annotations

from dataclasses import replace

from conformance.declare.declaration import unsupported
from conformance.engine.target import Target, TargetFacts
from conformance.selftest.mutants import MutantTarget


class Choosy(MutantTarget):
    """torch CPU whose transposes go stale. Programs with gradients or with inputs that share a storage are
    unsupported."""

    def __init__(self, argument: str = "") -> None:
        super().__init__("transpose is stale")
        self.spec = "class:tests.planted.choosy.Choosy"
        traits = ("an input that requires grad", "inputs that share a storage")
        self.facts = replace(self.facts, declarations=(unsupported("so", trait=traits),))


class Refusing(Target):
    """torch CPU that supports no dtype."""

    name = "refusing"
    facts = TargetFacts(dtypes=frozenset())
