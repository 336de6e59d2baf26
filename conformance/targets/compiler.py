"""torch.compile with any registered backend on the CPU: `compile:NAME[,import=MODULE][,call=FUNCTION][,dynamic=yes]`.

Defines `CompileTarget`. The key insight: a function that Dynamo never hands to the backend (a graph break, a fallback
to eager, a constant that is folded away) runs as plain torch CPU and would agree with itself, so the backend is
wrapped, and what it is handed is counted: graphs, and the ops in them. What differs is the fault of tracing,
functionalization, fake tensors, autograd's joint graph, aliasing, or the backend's code generator; `compile:aot_eager`
has no code generator."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from conformance.core import torch_compat
from conformance.core.errors import TargetError
from conformance.core.names import ORACLES, SIGNIFICANT_STRIDE, nearest
from conformance.core.registration import options, register, setup
from conformance.core.target import Capture, Target

LAYERS = ("eager", "aot_eager")
"""Backends of torch that run a graph as it is: after Dynamo alone, and after Dynamo and AOTAutograd."""

FORM = "compile:NAME[,import=MODULE][,call=FUNCTION][,dynamic=yes]"


class CompileTarget(Target):
    """A program, or an op_db sample, as one compiled function of tensors on the CPU. Inductor draws its random numbers
    by torch's own kernels (`fallback_random`), since no seed makes its own generators draw what torch CPU does."""

    name = "compile"
    transforms_program = True
    oracles = frozenset(ORACLES) - {"kernels", "version", "stride"} | {SIGNIFICANT_STRIDE}
    unsupported = frozenset(
        {
            *("same_base", "set_data", "set_view_", "resize_filled_", "empty_filled", "a second backward"),
            "forward_over_backward",
            "state",
        }
    )
    """`same_base` asks for views' bases and addresses, and the next four replace a storage or look into its gaps: what
    a functional graph does not have. What was compiled together is one node of the autograd graph, which can be gone
    through once. `backward` itself, and a step that raises, are where one compiled function ends and the next begins.
    """

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.backend, given = options("compile", argument, ("import", "call", "dynamic"), FORM)
        if given.get("dynamic", "no") not in ("yes", "no"):
            raise TargetError(f"target 'compile:{argument}' is not understood: write {FORM}")
        self.module, self.function = given.get("import", ""), given.get("call", "")
        self.dynamic = given.get("dynamic") == "yes"
        self._seen = Capture()
        every = LAYERS[: LAYERS.index(self.backend)] if self.backend in LAYERS else LAYERS
        self.siblings = tuple(f"compile:{name}{',dynamic=yes' * self.dynamic}" for name in every)
        self.without_backend = () if self.of_torch else self.siblings

    @property
    def of_torch(self) -> bool:
        """Whether the backend is one of torch's own, of whose findings none is excused: the layer is only named."""
        there = importlib.metadata.entry_points(group="torch_dynamo_backends")
        return not self.module and self.backend not in {entry.name for entry in there}

    def prepare(self) -> None:
        """Import what registers the backend, find the backend, and compile one function with it. Raises TargetError."""
        register(self.module, self.function, f"the backend {self.backend!r}")
        torch_compat.quiet_dynamo()
        known = torch_compat.backend_names()
        if self.backend not in known:
            raise TargetError(f"torch.compile knows no backend {self.backend!r}{self._hint(known)}")
        if self.backend == "inductor":
            if not torch_compat.has_cpp_compiler():
                raise TargetError(
                    "inductor needs a C++ compiler and finds none: install g++, or name one in the environment "
                    "variable CXX"
                )
            torch_compat.keep_eager_draws()
        try:
            self._compile = torch_compat.compiler_backend(self.backend)
            self._attempt = torch_compat.run_eagerly(super().attempt)
            with self.capture() as seen:
                self.transform(lambda tensor: tensor.mul(2).view(-1).add_(1))(torch.ones(2, 3))
        except Exception as error:  # anybody's compiler, which may fail in any way
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            raise TargetError(
                f"torch.compile with backend {self.backend!r} does not work here on Python {sys.version.split()[0]}: "
                f"{reason}"
            ) from error
        if not seen.ops:
            raise TargetError(
                f"torch.compile with backend {self.backend!r} compiles nothing here: it was handed no graph of a "
                "function of three ops; see whether TORCHDYNAMO_DISABLE is set"
            )

    def _hint(self, known: Collection[str]) -> str:
        """How to name a backend that torch.compile does not know."""
        if self.module:
            call = "" if self.function else "; a module may also want a call, call=FUNCTION"
            return f" after the import of {self.module!r}: it knows {', '.join(sorted(known))}{call}"
        return (
            f": write compile:{self.backend},import=MODULE, where MODULE registers it, or choose from "
            f"{', '.join(sorted(known))}{nearest(self.backend, known)}"
        )

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """The step is compiled by itself, between the parts of the program before and after it: an exception ends the
        compiled function it is in."""
        answer = self._attempt(step, *tensors)
        return torch_compat.unwrapped(answer) if isinstance(answer, Exception) else answer

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function. What was compiled before is forgotten, so that an answer follows from this call."""
        torch_compat.reset_dynamo()
        return torch_compat.raising_inner(torch.compile(function, backend=self._counting, dynamic=self.dynamic))

    def _counting(self, graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        self._seen.graphs += 1
        self._seen.ops += sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
        return self._compile(graph, examples)

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count what the backend is handed, and Dynamo's graph breaks."""
        self._seen = seen = Capture()
        torch_compat.reset_graph_breaks()
        try:
            yield seen
        finally:
            seen.breaks = torch_compat.graph_breaks()

    def script(self) -> str:
        """What registers the backend, if anything, and the transform."""
        lines = setup(self.module, self.function, self.profile.environment if self.profile else {})
        if self.backend == "inductor":
            lines += "import torch._inductor.config\n\ntorch._inductor.config.fallback_random = True\n"
        return lines + (
            f"DEVICE, transform = {self.backend!r}, torch.compile(backend={self.backend!r}, dynamic={self.dynamic})\n"
            "torch._logging.set_logs(all=50)  # no log lines"
        )
