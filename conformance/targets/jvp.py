"""Forward-mode derivatives against backward: each element of a gradient is a derivative along it."""

from __future__ import annotations

from dataclasses import replace

from conformance.declare.declaration import unsupported
from conformance.record.names import SPECIALS_BACKWARD
from conformance.standalone.transforms import by_jvp
from conformance.targets.grad import GradTarget


class JvpTarget(GradTarget):
    """Target whose gradients come from forward-mode derivatives."""

    name = "jvp"
    derive = staticmethod(by_jvp)
    facts = replace(
        GradTarget.facts,
        declarations=(
            *GradTarget.facts.declarations,
            unsupported(
                "a derivative in one direction multiplies the other elements by 0, which gives nan for an infinite "
                "factor",
                trait="values that are not finite",
                variant=tuple(SPECIALS_BACKWARD),
            ),
        ),
    )
