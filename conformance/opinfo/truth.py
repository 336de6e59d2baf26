"""The truth of a call: what torch CPU answers on the same inputs in float64 and complex128.

Defines `truth_of`. The key insight: where target and CPU differ beyond the tolerance, the CPU's own rounding may be
what is wrong; the same call in a wider dtype can tell, as PyTorch's own tests do with a float64 reference. A call that
does not run in float64, or answers differently with another seed, has no truth, and then the CPU stays right.
What the truth decides is the oracle's; nothing is compared here.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.core.arbitration import widened
from conformance.core.float64 import Float64Reference
from conformance.core.moving import leaves, map_leaves, moved, observable, taken_apart
from conformance.core.observation import Observation, observe
from conformance.core.oracles import compare
from conformance.opinfo import seeding
from conformance.opinfo.variants import Call


def truth_of(call: Call) -> tuple[Observation, Any] | None:
    """What is seen of the call in float64, and its outcome; None where it has no answer in float64 or a random one.

    Dtypes among the arguments are widened too; integer inputs stay as they are.
    """
    named = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(call.tree)]
    if all(dtype == widened(dtype) for dtype in named if isinstance(dtype, torch.dtype)):
        return None
    try:
        first, again = (_run(call, seed) for seed in (seeding.SEED, seeding.SEED + 1))
    except Exception:  # whatever it is, it says nothing about the target: the finding stands
        return None
    return None if compare(first[0], again[0], exact=True) else first


def _run(call: Call, seed: int) -> tuple[Observation, Any]:
    wide = Float64Reference()
    # Nothing is kept apart here: what OpInfo keeps on the CPU is widened with the rest.
    tree = moved(call.tree, wide.send, wide.device)
    tree = map_leaves(tree, lambda leaf: widened(leaf) if isinstance(leaf, torch.dtype) else leaf)
    seeding.seed()
    torch.default_generator.manual_seed(seed)
    with call.draws.repeated():
        outcome = call.run(tree, lambda function: function)
    return observe({"result": taken_apart(outcome)}, observable(tree, call.tree), target=wide), outcome
