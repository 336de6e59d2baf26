"""torch.compile with any registered backend: `compile:NAME[,import=MODULE][,call=FUNCTION][,dynamic=...][,device=...]`.

Defines `CompileTarget`. Dynamo may not pass a function to the backend: after a graph break, in a fallback to eager, or
if it folds a constant. Such a function runs as plain torch CPU and would be compared with itself. The target therefore
wraps the backend and counts the graphs, and the ops in them, that the backend receives. A difference may come from
tracing, functionalization, fake tensors, autograd's joint graph, aliasing, or the backend's code generator;
`compile:aot_eager` has no code generator.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from conformance.declare.declaration import unsupported
from conformance.engine.layers import SETTING
from conformance.engine.registration import features_of, opened, options, register, setup
from conformance.engine.target import Capture, Target, TargetFacts
from conformance.record.error_text import text_of
from conformance.record.errors import TargetError
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE, nearest
from conformance.record.patterns import BACKEND, COMPILER_LAYERS
from conformance.standalone import torch_compat

LAYERS = ("eager", "aot_eager")
"""Backends of torch that run a graph unchanged: after Dynamo alone, and after Dynamo and AOTAutograd."""

DEFAULT = "compile:aot_default,import=conformance.engine.aot_default"
"""Target with AOTAutograd's default settings, which most other backends have, and `aot_eager` has not."""

ENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
NAMES = dict(zip(ENDS, COMPILER_LAYERS, strict=True))
"""Names of the layers by the backend that ends with each; another backend is its own last layer."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "common subexpressions": {"_functorch.config.cse": False},
    "replay of views": {"_functorch.config.view_replay_for_aliased_outputs": False},
    "guessed strides of tangents": {"_functorch.config.guess_tangent_strides_as_outputs": False},
    "the fake tensor cache": {"_dynamo.config.fake_tensor_cache_enabled": False},
    "constant and index propagation": {"_inductor.config.constant_and_index_propagation": False},
    "rounding in float32": {"_inductor.config.emulate_precision_casts": True},
    # The value of this setting stands in the command of the C++ compiler, which takes no further options.
    "undefined overflow": {"_inductor.config.cpp.enable_floating_point_contract_flag": "off -fwrapv"},
    "vectorization of loop tails": {"_inductor.config.cpp.enable_loop_tail_vec": False},
    "vectorization": {"_inductor.config.cpp.simdlen": 1},
    "contraction of products": {"_inductor.config.cpp.enable_floating_point_contract_flag": "off"},
    "fusion": {"_inductor.config.max_fusion_size": 1, "_inductor.config.epilogue_fusion": False},
    "in-place buffers": {"_inductor.config.inplace_buffers": False},
    "reuse of buffers": {"_inductor.config.allow_buffer_reuse": False},
    "reordering of loops": {"_inductor.config.pick_loop_orders": False},
    "split reductions": {"_inductor.config.split_reductions": False},
    "layout optimization": {"_inductor.config.layout_optimization": False},
    "padding": {"_inductor.config.comprehensive_padding": False},
}
"""The settings that attribution changes one at a time, by what the compiler then lacks; the cheapest first."""

FORM = "compile:NAME[,import=MODULE][,call=FUNCTION][,dynamic=yes|auto][,device=NAME]"

ON_DEVICE = (unsupported("the device does not follow autocast of CPU tensors", state="whole_autocast"),)
"""What is unsupported, too, if the tensors of a function are not on the CPU."""

DYNAMIC = {"no": False, "yes": True, "auto": None}
"""torch.compile's `dynamic` by the option's value; with "auto", a further call with another shape makes sizes
dynamic."""


class CompileTarget(Target):
    """A program, or an op_db sample, as one compiled function of tensors on the CPU or another device, which a probe
    examines like that of `device:NAME`. Inductor draws random numbers with torch's own kernels (`fallback_random`),
    since its own generators draw other numbers than torch CPU for any seed.
    """

    name = "compile"
    facts = TargetFacts(
        oracles=frozenset(ORACLES) - {"version", "stride"} | {SIGNIFICANT_STRIDE},
        transforms_program=True,
        compiles=True,
        # Programs may have `backward` and steps that raise: one compiled function ends there and the next begins.
        declarations=(
            unsupported("a functional graph has no bases and addresses of views", step="same_base"),
            unsupported(
                "a functional graph cannot replace a storage or read its gaps",
                step=("set_data", "set_view_", "resize_filled_", "empty_filled"),
            ),
            unsupported("state of Python between calls is not part of a graph", step="state"),
            unsupported(
                "a compiled function is one node of the autograd graph, which supports only one backward pass",
                trait="a second backward",
                variant="forward_over_backward",
            ),
        ),
    )

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        self.backend, settings = options("compile", argument, ("import", "call", "dynamic", "device", "without"), FORM)
        dynamic = settings.get("dynamic", "no")
        if dynamic not in DYNAMIC:
            raise TargetError(f"target 'compile:{argument}' is not understood: write {FORM}")
        self.module, self.function = settings.get("import", ""), settings.get("call", "")
        self.dynamic = DYNAMIC[dynamic]
        on = settings.get("device", "cpu")
        self._seen = Capture()
        every = LAYERS[: LAYERS.index(self.backend)] if self.backend in LAYERS else LAYERS
        kept = [f",{key}={value}" for key, value in settings.items() if key in ("dynamic", "device", "without")]
        kept += [f",import={self.module}"] * (on != "cpu" and bool(self.module))
        siblings = tuple(f"compile:{name}{''.join(kept)}" for name in every)
        if not self.of_torch and on == "cpu":
            siblings += (DEFAULT + "".join(kept),)
        inductor = self.backend == "inductor"
        self.facts = replace(
            self.facts.without(features_of(settings.get("without", "nothing"))),
            declarations=self.facts.declarations + (ON_DEVICE if on != "cpu" else ()),
            on=on,
            probed=on != "cpu" and "without" not in settings,
            follows_eager=self.of_torch,
            saves_graphs=inductor,  # with the graphs of AOTAutograd
            # It takes four seconds to import Inductor, and to look up the CPU's instructions.
            preload=(f"{torch_compat.__name__}:load_inductor",) if inductor and on == "cpu" else (),
            siblings=siblings,
            without_backend=() if self.of_torch else siblings,
        )

    @property
    def of_torch(self) -> bool:
        """Whether the backend is one of torch's own. Its findings are never excused; the report only names
        their layer.
        """
        there = importlib.metadata.entry_points(group="torch_dynamo_backends")
        return not self.module and self.backend not in {entry.name for entry in there}

    def prepare(self) -> None:
        """Register the backend, find it, and compile one function with it. Raises TargetError."""
        register(self.module, self.function, f"the backend {self.backend!r}")
        spec = f"compile:{self.backend},device={self.facts.on}"
        self.device = opened(self.facts.on, self.module, self.function, spec)
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
            torch_compat.omit_line_tables()
            torch_compat.load_no_graphs()
            torch_compat.build_whole_kernels()
        try:
            self._compile = torch_compat.compiler_backend(self.backend)
            self._attempt = torch_compat.run_eagerly(super().attempt)
            with self.capture() as seen:
                self.transform(lambda tensor: tensor.mul(2).view(-1).add_(1))(torch.ones(2, 3, device=self.device))
        except Exception as error:  # a third-party compiler may raise anything
            reason = f"{type(error).__name__}: {text_of(error)}".strip().partition("\n")[0]
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
        """Return a hint on how to name a backend that torch.compile does not find."""
        if self.module:
            call = "" if self.function else "; a module may also want a call, call=FUNCTION"
            return f" after the import of {self.module!r}: it knows {', '.join(sorted(known))}{call}"
        return (
            f": write compile:{self.backend},import=MODULE, where MODULE registers it, or choose from "
            f"{', '.join(sorted(known))}{nearest(self.backend, known)}"
        )

    def attempt(self, step: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """Compile the step as a separate function, between the parts of the program before and after it. An exception
        ends the compiled function that contains it.
        """
        answer = self._attempt(step, *tensors)
        return torch_compat.unwrapped(answer) if isinstance(answer, Exception) else answer

    def transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled function. Dynamo's caches are reset first, so that the answer does not depend on earlier
        calls.
        """
        torch_compat.reset_dynamo()
        return torch_compat.raising_inner(torch.compile(function, backend=self._counting, dynamic=self.dynamic))

    def _counting(self, graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        self._seen.graphs += 1
        self._seen.ops += sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
        return self._compile(graph, examples)

    def layers(self) -> Sequence[tuple[str, Target]]:
        """Return the layers of torch.compile up to the backend (`engine.layers.Layered`)."""
        names = [*NAMES]
        before = names[: names.index(self.backend)] if self.backend in names else names[:-2]
        return [*((NAMES[name], self._ending_with(name)) for name in before), (self.layer, self)]

    @property
    def slow(self) -> bool:
        """Inductor, which starts a C++ compiler for each function."""
        return self.backend == "inductor"

    @property
    def layer(self) -> str:
        """Name of the last layer."""
        return NAMES.get(self.backend, f"{BACKEND}{self.backend}")

    def _ending_with(self, backend: str) -> CompileTarget:
        """Return this target with another backend."""
        shorter = copy.copy(self)
        shorter.facts = replace(self.facts, saves_graphs=False)
        shorter.backend, shorter._compile = backend, torch_compat.compiler_backend(backend)
        return shorter

    @contextlib.contextmanager
    def applied(self) -> Iterator[dict[str, list[str]]]:
        """Record the parts that the compiler applies, and name the settings that concern this layer."""
        owners = ("_dynamo", "_functorch", "_inductor")
        concerned = owners[: 1 + min([*NAMES].index(self.backend), 2)] if self.backend in NAMES else owners[:2]
        settings = {SETTING: [name for name, values in SETTINGS.items() if next(iter(values)).startswith(concerned)]}

        def note(kind: str, name: str) -> bool:
            settings.setdefault(kind, []).append(name)
            return False

        with torch_compat.compiler_settings({}), torch_compat.bisected(note):
            yield settings

    @contextlib.contextmanager
    def switched_off(self, kind: str, names: Collection[str]) -> Iterator[None]:
        """Compile without these parts of one kind."""
        changed = {key: value for name in names for key, value in SETTINGS[name].items()} if kind == SETTING else {}

        def skips(kind_of_part: str, name: str) -> bool:
            return kind_of_part == kind and name in names

        with torch_compat.compiler_settings(changed), torch_compat.bisected(skips):
            yield

    def saving_graphs(self) -> contextlib.AbstractContextManager[None]:
        """Save the compiled graphs, and load those that were saved in this context."""
        return torch_compat.saved_graphs()

    @contextlib.contextmanager
    def capture(self) -> Iterator[Capture]:
        """Count the graphs and ops that the backend receives, and Dynamo's graph breaks."""
        self._seen = seen = Capture()
        torch_compat.reset_graph_breaks()
        try:
            yield seen
        finally:
            seen.breaks = torch_compat.graph_breaks()

    def script(self) -> str:
        """Return the code that registers the backend, if any, and defines the transform."""
        lines = setup(self.module, self.function, self.facts.profile.environment if self.facts.profile else {})
        if self.backend == "inductor":
            lines += "import torch._functorch.config, torch._inductor.config\n\n"
            lines += "torch._inductor.config.fallback_random = True\n"
            lines += "# no graphs of earlier processes\n"
            lines += "torch._functorch.config.enable_autograd_cache = torch._inductor.config.fx_graph_cache = False\n"
        lines += f"ON = {self.facts.on!r}\n" * (self.facts.on != "cpu")
        return lines + (
            f"DEVICE, transform = {self.backend!r}, torch.compile(backend={self.backend!r}, dynamic={self.dynamic})\n"
            "torch._logging.set_logs(all=50)  # no log lines"
        )
