"""`torch.compile` backends behind AOTAutograd, each with a bug that PyTorch's own backends do not have."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend, register_backend

FEW = 4
"""The number of elements up to which `raises_small_relu` is wrong."""


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


def _negates_gelu_backward(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Negate the gradient of gelu."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.gelu_backward.default:
            with graph.graph.inserting_after(node):
                negated = graph.graph.call_function(torch.ops.aten.neg.default, (node,))
            node.replace_all_uses_with(negated, delete_user_cb=lambda user, negated=negated: user is not negated)
    graph.recompile()
    return make_boxed_func(graph.forward)


register_backend(aot_autograd(fw_compiler=_negates_gelu_backward), "negates_gelu_backward")


@register_backend
def wrong_exp_of_products(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Compute exp2 instead of exp of a product: a wrong pattern of two nodes."""
    for node in graph.graph.nodes:
        if node.target is torch.exp and getattr(node.args[0], "target", None) is operator.mul:
            node.target = torch.exp2
    graph.recompile()
    return graph.forward


@register_backend
def draws_otherwise(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Draw other random numbers than eager torch."""

    def run(*inputs: Any) -> Any:
        torch.rand(3)
        return graph(*inputs)

    return run


@register_backend
def raises_small_relu(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """Add 1 to the relu of few elements."""

    def relu(tensor: torch.Tensor) -> torch.Tensor:
        return torch.relu(tensor) + (tensor.numel() <= FEW)

    return _with_relu(graph, relu)


@register_backend
def dies_of_two_relus(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    """End the process that calls a graph with more than one relu."""
    relus = sum(node.target is torch.nn.functional.relu for node in graph.graph.nodes)
    return _with_relu(graph, lambda tensor: os.kill(os.getpid(), signal.SIGSEGV) if relus > 1 else torch.relu(tensor))


def _with_relu(graph: torch.fx.GraphModule, relu: Callable[[torch.Tensor], Any]) -> Any:
    """Replace the function of relu."""

    def called(tensor: torch.Tensor, inplace: bool = False) -> Any:
        return relu(tensor)

    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.relu:
            node.target = called
    graph.recompile()
    return graph.forward
