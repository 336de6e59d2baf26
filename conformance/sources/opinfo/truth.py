"""Truth of a call: torch CPU's answer on the same inputs in float64 and complex128.

Defines `truth_of`. If target and CPU differ beyond the tolerance, the CPU's own rounding may be the cause. The same
call in a wider dtype decides this, as the float64 references of PyTorch's own tests do. A call that does not run in
float64, or answers differently with another seed, has no truth, and then the CPU's answer stands. This module compares
no target; the judge uses the truth.
"""

from __future__ import annotations

import torch

from conformance.engine.arbitration import widened
from conformance.engine.executor import Execution
from conformance.engine.float64 import Float64Reference
from conformance.sources.opinfo import seeding
from conformance.sources.opinfo.variants import Call
from conformance.standalone.moving import leaves, map_leaves, moved, observable, taken_apart
from conformance.standalone.observation import observe
from conformance.standalone.oracles import compare


def truth_of(call: Call) -> Execution | None:
    """Return the run of the call in float64, or None if it has no answer in float64 or a random one.

    Dtypes among the arguments are widened too; integer inputs stay unchanged.
    """
    named = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(call.tree)]
    if all(dtype == widened(dtype) for dtype in named if isinstance(dtype, torch.dtype)):
        return None
    try:
        first, again = (_run(call, seed) for seed in (seeding.SEED, seeding.SEED + 1))
    except Exception:  # says nothing about the target: the finding stands
        return None
    return None if compare(first.last, again.last, exact=True) else first


def _run(call: Call, seed: int) -> Execution:
    wide = Float64Reference()
    # `kept` is not passed: tensors that OpInfo keeps on the CPU are widened too.
    tree = moved(call.tree, wide.send, wide.device)
    tree = map_leaves(tree, lambda leaf: widened(leaf) if isinstance(leaf, torch.dtype) else leaf)
    seeding.seed()
    torch.default_generator.manual_seed(seed)
    with call.draws.repeated():
        outcome = call.run(tree, lambda function: function)
    seen = observe({"result": taken_apart(outcome)}, observable(tree, call.tree), target=wide)
    return Execution((seen,), outcome=outcome)
