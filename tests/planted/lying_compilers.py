"""`torch.compile` backends behind AOTAutograd, each with a bug that PyTorch's own backends do not have."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend, register_backend


def _negates_relu(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Replace relu by neg."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.neg.default
    graph.recompile()
    return make_boxed_func(graph.forward)


register_backend(aot_autograd(fw_compiler=_negates_relu), "negates_relu")


@register_backend
def loses_add_(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Drop the write of `add_`. PyTorch itself drops it for a 0-d float64."""
    for node in graph.graph.nodes:
        if node.target == "add_":
            node.target = "add"
    graph.recompile()
    return lookup_backend("aot_eager")(graph, examples)
