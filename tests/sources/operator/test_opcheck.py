"""`torch.library.opcheck` on the same lies, with two calls of each kind: the part of them that it catches.

It judges the registration of an operator, and knows no reference. It takes no plain functions.
"""

from __future__ import annotations

import pytest
import torch

from conformance.sources.operator import calls as kinds
from conformance.sources.operator.examine import CheckRequest, examination
from conformance.sources.operator.forks import forked
from tests.planted.kernels import LIES

KINDS = (kinds.SAMPLED, kinds.STRIDED, kinds.EMPTY, kinds.SCALARS, kinds.BLOCKS, kinds.SPECIAL)
DERIVED = ("gradients", "cotangents", "gradcheck")
"""Lies that register a derivative; for others opcheck would report that there is none."""

CAUGHT = {"empty", "scalars", "mixed", "aliasing", "mutation", "fake", "inductor"}
BY_LUCK = {"unwritten"}
"""Elements that happen to differ from run to run."""

MISSED = {
    *("values", "layouts", "blocks", "specials", "repetition", "batch", "writes", "reads", "dtype", "shape", "strides"),
    *(
        "magnitudes",
        "globals",
        "version",
        "overlap",
        "declared",
        "dtypes",
        "replay",
        "contexts",
        "accuracy",
        "gradients",
        "cotangents",
        "gradcheck",
        "symbolic",
        "vmap",
        "autocast",
        "refusals",
    ),
}
NOT_TAKEN = {
    *("forbid", "structure", "compile", "dynamic", "crash", "hang", "memory", "negative", "distribution"),
    *("subsets", "second", "forward_mode", "backward"),
}
"""Lies that are plain functions."""


def answer(name: str) -> str:
    """What opcheck says of a lie: an error, "" for nothing, or "not taken"."""
    request = CheckRequest(**LIES[name], near="tests.planted.kernels")
    trial = examination(request)
    overload = trial.operator.overload
    if overload is None:
        return "not taken"

    def own(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.clone().requires_grad_(name in DERIVED and leaf.is_floating_point())

    def work(send):
        for call in (call for kind in KINDS for call in trial.plan.of(kind)[:2]):
            args, kwargs = call.arguments()
            try:
                torch.library.opcheck(overload, tuple(map(own, args)), kwargs)
            except Exception as error:
                send(repr(error))
                return
        send("")

    return str(next(forked(work, 100)))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_opcheck_catches_a_part(name):
    """The table above is what opcheck answers."""
    said = answer(name)
    assert (said == "not taken") == (name in NOT_TAKEN)
    assert name in BY_LUCK | NOT_TAKEN or bool(said) == (name in CAUGHT)


def test_the_table_has_every_lie():
    """Each lie is in one row."""
    rows = (CAUGHT, BY_LUCK, MISSED, NOT_TAKEN)
    assert sorted(name for row in rows for name in row) == sorted(LIES)
