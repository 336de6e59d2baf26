"""Names of the checks, for a command line that is parsed without torch. A test compares them with the table."""

from __future__ import annotations

CHECKS = (
    *("values", "layouts", "empty", "scalars", "blocks", "specials", "mixed"),
    *("structure", "dtype", "shape", "strides", "aliasing", "mutation", "version", "accuracy"),
    *("writes", "reads", "unwritten", "repetition", "batch", "gradients", "cotangents", "gradcheck"),
    *("fake", "symbolic", "compile", "dynamic", "inductor", "vmap", "autocast", "refusals"),
    *("crash", "hang", "memory"),
)
"""The names of `checks.CHECKS`, in its order."""

NAMED = ("strides", "batch", "inductor", "refusals")
"""Checks that run only if they are named."""
