"""torch CPU with two planted faults active at the same time. One fault may hide the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from conformance.selftest.mutants import EVERY, MutantTarget, Planted


class Pair(MutantTarget):
    """torch CPU with two faults."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)
        self.other = Planted(EVERY[other])

    def send(self, tree: Any) -> Any:
        self.other.memory.clear()
        return super().send(tree)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with super().active(), self.other:
            yield
