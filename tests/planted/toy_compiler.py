"""A toy `torch.compile` backend with five planted bugs: `compile:toy,import=toy_compiler`.

`TOY_FAULTS` selects faults by name, separated by commas; by default all are active. The backend runs Dynamo's graph
unchanged under a dispatch mode that falsifies single operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import register_backend
from torch.utils._python_dispatch import TorchDispatchMode

FAULTS = ("copies", "lost_add_", "relu", "mul", "half")
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


class Falsifying(TorchDispatchMode):
    """Falsify the operators of the selected faults."""

    def __init__(self, faults: frozenset[str]) -> None:
        super().__init__()
        self.faults = faults

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "add_" and "lost_add_" in self.faults:
            return args[0]  # the write is lost
        result = func(*args, **(kwargs or {}))
        if name == "relu" and "relu" in self.faults:
            return torch.where(args[0] < 0, args[0].mul(0.01).to(args[0].dtype), result)  # a leaky relu
        if name == "mul" and "mul" in self.faults and args[0].numel() != result.numel():
            return result + result  # wrong where the first operand is broadcast
        if name in ARITHMETIC and "half" in self.faults and result.dtype is torch.float16:
            return result.float()  # computed in float32 and never rounded back
        return result


def chosen() -> frozenset[str]:
    """The faults that `TOY_FAULTS` selects. Raises ValueError for an unknown name."""
    names = os.environ.get("TOY_FAULTS", ",".join(FAULTS))
    faults = frozenset(filter(None, names.split(",")))
    if not faults <= {*FAULTS}:
        raise ValueError(f"TOY_FAULTS={names}: choose from {', '.join(FAULTS)}")
    return faults


@register_backend
def toy(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
    """Run the graph with the selected faults."""
    faults = chosen()

    def run(*inputs: Any) -> Any:
        with Falsifying(faults):
            results = graph(*inputs)
        if "copies" in faults:  # views and inputs are returned as copies
            return tuple(result.clone() if isinstance(result, torch.Tensor) else result for result in results)
        return results

    return run
