"""A backend of `torch.compile` behind AOTAutograd that negates what it should rectify: a bug of its own, beside those
that PyTorch has with any backend."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend


def _negates_relu(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.neg.default
    graph.recompile()
    return make_boxed_func(graph.forward)


register_backend(aot_autograd(fw_compiler=_negates_relu), "negates_relu")
