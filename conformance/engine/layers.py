"""`Layered`, a target that is a stack of layers whose parts can be switched off, such as a compiler.

A difference on such a target has a layer: the first from outside whose output is wrong. Within the layer it may have a
part: a pass, a decomposition, a setting or a lowering without which the difference disappears. This module defines the
interface; `program/compiler_attribution.py` searches, and `targets/compiler.py` has the layers of torch.compile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from conformance.engine.target import Target

DECOMPOSITION, PASS, SETTING, LOWERING = "decomposition", "pass", "setting", "lowering"
PARTS = (DECOMPOSITION, PASS, SETTING, LOWERING)
"""The kinds of parts, in the order in which they are tried. An operator's lowering comes last: a fallback to
torch's own kernel hides faults of every earlier part."""


@runtime_checkable
class Layered(Protocol):
    """A target that is a stack of layers."""

    @property
    def slow(self) -> bool:
        """Whether the last layer is much slower than the others, so that a search should end before it if it can."""

    def layers(self) -> Sequence[tuple[str, Target]]:
        """Return the layers from outside in: the name of each, and a target that ends with it. The last is this target,
        whose parts the other methods record and switch off."""

    def applied(self) -> AbstractContextManager[dict[str, list[str]]]:
        """Return a context that records the parts applied inside it: their names in order of application, by kind. The
        names of settings are those that differ from the recorded run."""

    def switched_off(self, kind: str, names: Collection[str]) -> AbstractContextManager[None]:
        """Return a context in which these parts of one kind are not applied."""


def part_named(text: str) -> tuple[str, list[str]]:
    """Return the kind and the names of a part, as the culprit of a finding names it."""
    kind, _, names = text.partition(" ")
    return (SETTING, [names]) if kind == "without" else (kind, names.split(" + "))
