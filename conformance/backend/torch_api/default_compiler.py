"""`torch.compile(model)` of tensors on tiny, without a named backend.

Defines `install`, and `inductor_class`, the classes that `torch.tiny` gives Inductor. torch passes Inductor, its
default, a graph with its inputs. A graph that contains a tiny tensor goes to the tiny compiler instead. All other
graphs go to Inductor, with modes and options. Inductor generates C++ and Triton, neither of which can address a storage
on tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..runtime import torch_compat
from .replacements import replace_at_import, replace_on_first_use


def install() -> None:
    """Make torch's default compiler pass graphs with tiny tensors to `torch.compile(..., backend="tiny")`.

    Modes and options select Inductor's kernels, so the tiny compiler ignores them. A graph for a shared library
    (`use_aoti`) raises RuntimeError, since tiny has no such form.
    """
    replace_at_import("torch:_TorchCompileInductorWrapper.__call__", _compiling_graphs)
    replace_at_import("torch:_TorchCompileAOTInductorWrapper.__call__", _refusing_libraries)
    replace_on_first_use("torch.nn.attention.flex_attention:_validate_device", _validating_flex_device)


def _compiling_graphs(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_graph(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        if not has_tiny(graph, inputs):
            return original(self, graph, inputs, **options)
        from .compile import tiny  # imports Dynamo, which takes seconds

        return tiny(graph, inputs)

    return compile_graph


def _refusing_libraries(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_library(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        if has_tiny(graph, inputs):
            raise RuntimeError(
                "tiny: use_aoti makes a library of CPU or CUDA code, which cannot address tensors on tiny: leave it "
                'out, or name backend="tiny"'
            )
        return original(self, graph, inputs, **options)

    return compile_library


_NO_LIBRARY = (
    "tiny: Inductor makes code for the CPU or CUDA, which cannot address tensors on tiny: export the model on the CPU "
    'for a package (aoti_compile_and_package), or use torch.compile(model, backend="tiny")'
)


class _NoCode:
    """Inductor's writer of code for the device: none. Inductor creates one for each graph."""

    supports_caching = False  # asked for before the first graph

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError, in one sentence; Inductor's own error is `KeyError: 'tiny'`."""
        raise RuntimeError(_NO_LIBRARY)


def inductor_class(name: str) -> Any:
    """A class that Inductor asks of a device's module when it starts, by name. AttributeError for any other name.

    A model that `torch.export` captured reaches Inductor by ways that pass none of torch's compilers
    (`aoti_compile_and_package`).
    """
    if name not in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"):
        raise AttributeError(f"module 'torch.tiny' has no attribute {name!r}")
    register: Callable[[str, Any], None] = torch_compat.lookup(
        "torch._inductor.codegen.common:register_device_op_overrides"
    )
    register("tiny", _NoCode())
    return _NoCode


def _validating_flex_device(original: Callable[..., None]) -> Callable[..., None]:
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """flex_attention has a list of devices; on tiny its decomposition into matrix products and a softmax serves."""
        if query.device.type != "tiny":
            original(query, key, value)

    return validate


def has_tiny(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a captured graph reads or makes a tensor on tiny."""
    tensors = (*inputs, *graph.parameters(), *graph.buffers())
    if any(isinstance(x, torch.Tensor) and x.device.type == "tiny" for x in tensors):
        return True
    return any(_is_tiny_device(x) for node in graph.graph.nodes for x in _arguments([node.args, node.kwargs]))


def _arguments(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for y in x:
            yield from _arguments(y)
    elif isinstance(x, dict):
        yield from _arguments(list(x.values()))
    else:
        yield x


def _is_tiny_device(x: Any) -> bool:
    if isinstance(x, str):
        return x.split(":")[0] == "tiny"
    return isinstance(x, torch.device) and x.type == "tiny"
