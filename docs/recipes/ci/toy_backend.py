"""A backend of `torch.compile` that runs each graph as it stands, with one known bug. Put yours in its place."""

import torch
from torch._dynamo import register_backend


@register_backend
def toy(graph, examples):
    """Return a function that computes the graph, for inputs such as `examples`."""
    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.gelu:  # the bug that reports/expectations/ declares
            node.kwargs = {**node.kwargs, "approximate": "tanh"}
    graph.recompile()
    return graph.forward
