"""Compiled graphs of the traced script: each graph's results and gradients against eager torch CPU, then its nodes.

Defines `Compiled`. While a trace is active, every graph that Dynamo passes to a backend is judged at each call, on
copies of its inputs. If a graph is wrong, its nodes are compiled one by one with the same backend and judged in the
same way. If no node is wrong by itself, a search finds the shortest wrong beginning of the graph. The nodes run after
the script.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest import mock

import torch

from conformance.engine.aten_ops import Tagged
from conformance.engine.executor import Execution
from conformance.engine.loading import reference
from conformance.engine.rules import LARGE
from conformance.engine.target import Target
from conformance.program.model import Program
from conformance.program.steps.entry import Runner
from conformance.record.error_text import text_of
from conformance.record.names import ORACLES, SIGNIFICANT_STRIDE
from conformance.record.shortfall import Shortfall
from conformance.sources.trace.call import (
    RESULT,
    VALUES,
    CopiedCall,
    NodeCall,
    fetched,
    observed,
    on_cpu,
    program_of_call,
)
from conformance.sources.trace.faults import FaultyOperator
from conformance.sources.trace.mode import CallCounts, Tracing
from conformance.sources.trace.source_lines import BACKWARD, FORWARD, SourceLine, is_of_user
from conformance.standalone.moving import copied_to_host, leaves, map_leaves, map_tensors, rebuild, tensors
from conformance.standalone.observation import Observation, Raised, names_of, tensors_by_name
from conformance.standalone.oracles import Mismatch
from conformance.standalone.torch_compat import DRAWS_NUMBERS, compile_wrappers

JUDGED = frozenset(ORACLES) - {"kernels", "version", "grad", "stride", "contiguity"} | {SIGNIFICANT_STRIDE}
"""Oracles of a compiled graph. A compiler may choose strides of dimensions of length 1."""

SECONDS = 60.0
"""Time in seconds in which the nodes of wrong graphs are compiled."""

CALLS = ("call_function", "call_method", "call_module")

COTANGENTS = "cotangents"
"""Input of the program of a graph's call, beside the graph's own inputs."""

Tree = Any
Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass
class GraphCall(CopiedCall):
    """A call of a graph. With `cotangents`, the call is that of its backward pass: the gradients of the inputs in
    `wanted`. `draws` says whether `by_cpu` drew random numbers."""

    graph: torch.fx.GraphModule
    args: list[Any]
    names: Sequence[str]
    wanted: frozenset[str] = frozenset()
    cotangents: list[Any] | None = None
    draws: bool = False

    def as_program(self) -> Program:
        """See `CopiedCall.as_program`. Rounding may dominate a result, and a graph may name the CPU."""
        given = {**dict(zip(self.names, self.args)), COTANGENTS: self.cotangents}
        called = (getattr(node.target, "__name__", str(node.target)) for node in self.graph.graph.nodes)
        return program_of_call((*dict.fromkeys(called),), self._again, given, (LARGE,), on_host=True)

    def _again(self, runner: Runner, *values: Any) -> dict[str, Any]:
        """Call the graph again on other values of its inputs, and of its cotangents, which are the last value."""
        return self._results(_with_constants(self.graph, runner.constant), values[:-1], values[-1])

    def inputs(self) -> list[Any]:
        """See `CopiedCall.inputs`."""
        return leaves((self.args, self.cotangents))

    def oracles(self, target: Target) -> frozenset[str]:
        """See `CopiedCall.oracles`."""
        return JUDGED - VALUES if self.draws else JUDGED

    def by_cpu(self) -> Execution:
        """Return the graph's answer in eager torch CPU."""
        args, cotangents = rebuild((self.args, self.cotangents), copied_to_host)
        random = Tagged(DRAWS_NUMBERS)
        try:
            with torch.random.fork_rng(devices=[]), random:
                result = self._run(self.graph, args, cotangents)
        except Exception as error:
            return Execution((Observation(error=Raised.of(error)),))
        self.draws = random.seen
        return result

    def by_compiler(self, inputs: Mapping[str, Any], results: Mapping[str, Any], target: Target) -> Execution:
        """Return the answer of the compiled graph, fetched."""
        return Execution((observed(tensors_by_name(inputs), results, target),))

    def _run(self, graph: torch.fx.GraphModule, args: list[Any], cotangents: list[Any] | None) -> Execution:
        results = self._results(graph, args, cotangents)
        inputs = tensors_by_name(dict(zip(self.names, args))) if cotangents is None else {}
        return Execution((observed(inputs, results),), outcome=results)

    def _results(self, graph: torch.fx.GraphModule, args: Sequence[Any], cotangents: Any) -> dict[str, Any]:
        """Return the graph's results by name, or the gradients of its inputs."""
        if cotangents is not None:
            return gradients(graph, dict(zip(self.names, args)), self.wanted, cotangents)
        with torch.no_grad():
            return names_of(graph(*args), RESULT)


def gradients(
    function: Callable[..., Any], inputs: Mapping[str, Any], wanted: frozenset[str], cotangents: Sequence[Any]
) -> dict[str, Any]:
    """Return the gradients of the wanted inputs of a function, by name."""
    with torch.enable_grad():
        leaves = {name: inputs[name].detach().requires_grad_() for name in inputs if name in wanted}
        inner = [leaves[name].clone() if name in leaves else value for name, value in inputs.items()]
        results = [*names_of(function(*inner), RESULT).values()]
        pairs = [(result, by) for result, by in zip(results, cotangents) if by is not None and result.requires_grad]
        if not pairs or not leaves:
            return {}
        outputs, by = zip(*pairs)
        grads = torch.autograd.grad(outputs, [*leaves.values()], by, allow_unused=True)
    return {f"gradient of {name}": grad for name, grad in zip(leaves, grads) if grad is not None}


@dataclass
class CompiledGraph:
    """A compiled graph of the script. `right` runs it on the CPU, and `wrong` holds a wrong call by phase."""

    number: int
    original: torch.fx.GraphModule
    right: torch.fx.GraphModule
    names: Sequence[str]
    backend: Backend
    compiler: str
    device: Target
    wrong: dict[str, tuple[GraphCall, FaultyOperator]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The graph's name in results."""
        return f"compiled graph {self.number}"

    @property
    def place(self) -> SourceLine:
        """The line of the first call in the graph."""
        return next((place for place in map(place_of, self.original.graph.nodes) if place.file), SourceLine())

    def fault(self, phase: str, mismatch: Mismatch) -> FaultyOperator:
        """Return the graph as a faulty operator, with its first difference."""
        return FaultyOperator(self.name, phase, self.place, mismatch, None, self.device, self.name, self.compiler)


class Compiled:
    """The compiled graphs of a trace."""

    def __init__(self, mode: Tracing, progress: Callable[[], None]) -> None:
        self.mode, self.progress, self.active = mode, progress, False
        self.graphs: list[CompiledGraph] = []
        self.not_judged: list[Shortfall] = []

    @property
    def compilers(self) -> list[str]:
        """The specs of the compilers of the graphs."""
        return [*dict.fromkeys(f"compile:{graph.compiler}" for graph in self.graphs)]

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Judge the graphs that are compiled and called inside the block."""
        with contextlib.ExitStack() as stack:
            for wrapper in compile_wrappers():
                stack.enter_context(mock.patch.object(wrapper, "__call__", self._entry(wrapper.__call__)))
            self.active = True
            try:
                yield
            finally:
                self.active = False

    def _entry(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_graph(wrapper: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            kept = _with_constants(graph, lambda leaf: leaf)
            devices = (tensor.device.type for tensor in tensors(list(inputs)) if tensor.device.type != "cpu")
            device = next(devices, "cpu")
            with self.mode.paused():
                compiled = original(wrapper, graph, inputs, **options)
                target = reference() if device == "cpu" else self.mode.target(device)
            captured = CompiledGraph(
                len(self.graphs) + 1, kept, _with_constants(kept, on_cpu), _inputs_of(kept),
                lambda graph, inputs: original(wrapper, graph, inputs, **options),
                str(getattr(wrapper, "compiler_name", "a compiler")), target,
            )  # fmt: skip
            self.graphs.append(captured)
            return lambda *args: self._call(captured, compiled, args)

        return compile_graph

    def _call(self, graph: CompiledGraph, compiled: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run the compiled graph, judge its results, and prepare to judge its gradients."""
        tally = self.mode.tallies.setdefault((graph.name, FORWARD), CallCounts())
        if not self.active or not self.mode.selects(graph.name, tally):
            return compiled(*args)
        with self.mode.paused():
            try:
                call = GraphCall(graph.right, fetched(list(args), graph.device), graph.names)
            except Exception as error:  # a tensor without strides
                tally.unjudged[f"{type(error).__name__}: {text_of(error)}"[:120]] += 1
                return compiled(*args)
            inputs, seen = dict(zip(graph.names, args)), _Backward(self, graph, call)
            watched = [*map(seen.watched, graph.names, args)] if torch.is_grad_enabled() else args
            result = compiled(*watched)
            self.judge(graph, call, inputs, names_of(result, RESULT), FORWARD)
            if self.mode.divergence is not None:
                self.mode.divergence.forget(tensors((list(args), result)))
            seen.outputs(result)
            return result

    def judge(
        self, graph: CompiledGraph, call: GraphCall, inputs: Mapping[str, Any], results: Mapping[str, Any], phase: str
    ) -> None:
        """Judge the results of a call of a compiled graph, or its gradients."""
        tally = self.mode.tallies.setdefault((graph.name, phase), CallCounts())
        if self.mode.options.nonfinite:
            tally.judged += 1
            if made := call.made_nonfinite(call.by_compiler(inputs, results, graph.device)):
                fault = graph.fault(phase, made[0])
                fault.wrong, fault.error = 1, math.inf
                self.mode.faults.insert(fault)
            self.progress()
            return
        want = call.by_cpu()
        if want.last.error is not None:
            tally.unjudged[f"torch CPU raises {want.last.error.kind}: {want.last.error.text}"[:120]] += 1
            return
        got = call.by_compiler(inputs, results, graph.device)
        if mismatches := tally.judge(call, want, got, graph.device):
            fault = graph.fault(phase, mismatches[0])
            _, fault = graph.wrong.setdefault(phase, (call, fault))
            fault.wrong += 1
            self.mode.faults.measure(fault, mismatches, want, got, tensors_by_name(results))
            self.mode.faults.attach(self.mode.outside)
        self.progress()

    def attribute(self, seconds: float) -> None:
        """Find the wrong nodes of the wrong graphs, and add them to the faults of the trace. After `seconds` no further
        node is compiled, and a graph without a wrong node so far is a fault as a whole."""
        until = time.monotonic() + seconds
        with self.mode.paused():
            for graph in self.graphs:
                for call, fault in graph.wrong.values():
                    search = Search(graph, call, fault, until)
                    for inner in search.faults():
                        self.mode.faults.insert(inner)
                    limit = f"{seconds:g} s for all graphs"
                    if search.untried:
                        what = f"nodes of {graph.name} compiled alone"
                        self.not_judged.append(Shortfall(what, search.untried, len(search.nodes), limit))
                    elif search.cut:
                        self.not_judged.append(Shortfall(f"searches for the wrong part of {graph.name}", 1, 1, limit))


class _Backward:
    """The gradients of one call of a compiled graph. Each input that requires a gradient passes through a view, whose
    hook receives the gradient that this graph computes."""

    def __init__(self, compiled: Compiled, graph: CompiledGraph, call: GraphCall) -> None:
        self.compiled, self.graph, self.call = compiled, graph, call
        self.cotangents: list[Any] = []
        self.watches = False

    def watched(self, name: str, value: Any) -> Any:
        """Return the input, or a view of it with a hook."""
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        view, self.watches = value.view_as(value), True
        view.register_hook(lambda grad: self._arrived(name, grad))
        return view

    def outputs(self, result: Any) -> None:
        """Note the gradients of the outputs as they arrive."""
        leaves = [*names_of(result, RESULT).values()]
        self.cotangents = [None] * len(leaves)
        for at, leaf in enumerate(leaves):
            if self.watches and isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda grad, at=at: self._came(at, grad))

    def _came(self, at: int, grad: torch.Tensor | None) -> None:
        if grad is None:  # an output that does not affect the loss
            return
        with self.compiled.mode.paused():
            self.cotangents[at] = fetched(grad.detach(), self.graph.device)

    def _arrived(self, name: str, grad: torch.Tensor) -> None:
        """Judge the gradient of one input."""
        if self.compiled.active and not self.call.draws:
            with self.compiled.mode.paused():
                call = replace(self.call, wanted=frozenset({name}), cotangents=self.cotangents)
                self.compiled.judge(self.graph, call, {}, {f"gradient of {name}": grad.detach()}, BACKWARD)


class Search:
    """The search for the wrong nodes of a wrong graph. No node is compiled after `until`, by the clock of `time`."""

    def __init__(self, graph: CompiledGraph, call: GraphCall, fault: FaultyOperator, until: float) -> None:
        self.graph, self.call, self.fault, self.until = graph, call, fault, until
        self.nodes = [node for node in graph.right.graph.nodes if node.op in CALLS]
        self.untried, self.cut = 0, False

    def faults(self) -> list[FaultyOperator]:
        """Return a fault for each node that is wrong by itself; else one for the last node of the shortest wrong
        beginning; else one for the whole graph. Wrong gradients of a graph with wrong results may follow from these, so
        only nodes count whose own gradient is wrong."""
        result = list(self._alone())
        if result or (self.fault.phase == BACKWARD and FORWARD in self.graph.wrong):
            return result
        node = self._beginning()
        if node is None:
            return [replace(self.fault, name=f"{self.graph.name} by {self.graph.compiler}")]
        return [replace(self.fault, name=f"{name_of(node)}, together with the nodes before it", place=place_of(node))]

    def _alone(self) -> Iterator[FaultyOperator]:
        """Compile each node by itself on the inputs that it has in eager torch CPU."""
        values: dict[torch.fx.Node, Any] = {}
        backward = self.fault.phase == BACKWARD
        inputs = iter(rebuild(self.call.args, copied_to_host))
        originals = {node.name: node for node in self.graph.original.graph.nodes}
        for node in self.graph.right.graph.nodes:
            if node.op == "placeholder":
                value = next(inputs)
                if isinstance(value, torch.Tensor):  # no leaf, so that a node may write it
                    value = value.clone() if backward and value.requires_grad else value.detach()
                values[node] = value
                continue
            if node.op == "output":
                return
            if node.op == "get_attr":
                values[node] = functools.reduce(getattr, str(node.target).split("."), self.graph.right)
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            in_time = time.monotonic() < self.until
            self.untried += not in_time
            if in_time and tensors((args, kwargs)):
                before = rebuild((args, kwargs), copied_to_host)
                pair = [_only(self.graph.right, node), _only(self.graph.original, originals[node.name])]
                wrong = self._compared(pair, [values[operand] for operand in node.all_input_nodes])
                if wrong is not None:
                    call = NodeCall(name_of(node), *before)
                    place = place_of(originals[node.name])
                    yield replace(self.fault, name=name_of(node), place=place, mismatch=wrong, call=call)
            with torch.set_grad_enabled(backward):
                values[node] = getattr(torch.fx.Interpreter(self.graph.right), node.op)(node.target, args, kwargs)

    def _beginning(self) -> torch.fx.Node | None:
        """Return the last node of the shortest wrong beginning of the graph, by bisection."""
        originals = {node.name: node for node in self.graph.original.graph.nodes}

        def wrong(count: int) -> bool:
            last = self.nodes[count - 1]
            pair = [_until(self.graph.right, last), _until(self.graph.original, originals[last.name])]
            return self._compared(pair, self.call.args) is not None

        right, bad = 0, len(self.nodes)
        self.cut = bool(bad) and time.monotonic() >= self.until
        if not bad or self.cut or not wrong(bad):
            return None
        while bad - right > 1 and not self.cut:
            middle = (right + bad) // 2
            right, bad = (right, middle) if wrong(middle) else (middle, bad)
            self.cut = bad - right > 1 and time.monotonic() >= self.until
        return cast(torch.fx.Node, originals[self.nodes[bad - 1].name])

    def _compared(self, pair: Sequence[torch.fx.GraphModule], args: Sequence[Any]) -> Mismatch | None:
        """Compile a part of the graph, and return its difference from eager torch CPU. `pair` is the part for the CPU
        and the part for the graph's device."""
        right, original = pair
        names, device = _inputs_of(right), self.graph.device
        backward = self.fault.phase == BACKWARD
        copies = rebuild(map_tensors(list(args), torch.Tensor.detach), copied_to_host)
        differentiable = (isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        wanted = frozenset(name for name, tensor in zip(names, differentiable) if backward and tensor)
        call = GraphCall(right, copies, names, wanted)
        want = call.by_cpu()
        if want.last.error is not None or call.draws:
            return None
        if backward:
            with torch.no_grad():
                outputs = [*names_of(right(*rebuild(copies, copied_to_host)), RESULT).values()]
            call.cotangents = [_cotangent(output) for output in outputs]
            want = call.by_cpu()
        sent, cotangents = device.send((rebuild(copies, copied_to_host), call.cotangents))
        compiled = torch.compile(original, backend=self.graph.backend, dynamic=False)
        try:
            inputs = dict(zip(names, sent))
            if backward:
                results, inputs = gradients(compiled, inputs, wanted, cotangents), {}
            else:
                with torch.no_grad():
                    results = names_of(compiled(*sent), RESULT)
            mismatches = call.judged(want, call.by_compiler(inputs, results, device), device).mismatches
        except Exception as error:
            text = f"{type(error).__name__}: {text_of(error)}"
            return Mismatch("error", "the whole run", "no error", type(error).__name__, text[:300])
        return mismatches[0] if mismatches else None


def name_of(node: torch.fx.Node) -> str:
    """Return the name of a node's function: torch.relu, or Tensor.add_."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "call_module" or isinstance(node.target, str):
        return str(node.target)
    return torch.overrides.resolve_name(node.target) or str(getattr(node.target, "__name__", node.target))


def _cotangent(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return (torch.arange(value.numel()) % 7 - 3).view(value.shape).to(value.dtype) / 4


def _inputs_of(graph: torch.fx.GraphModule) -> list[str]:
    """Return the names of a graph's inputs."""
    return [node.name for node in graph.graph.nodes if node.op == "placeholder"]


def _only(graph: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule:
    """Return a graph with this node alone, whose inputs are those of the node."""
    alone = torch.fx.Graph()
    known = {operand: alone.placeholder(operand.name) for operand in node.all_input_nodes}
    alone.output((alone.node_copy(node, known.__getitem__),))
    return torch.fx.GraphModule(graph, alone)


def _until(graph: torch.fx.GraphModule, last: torch.fx.Node) -> torch.fx.GraphModule:
    """Return the beginning of a graph up to this node, which returns the node's value."""
    part, known = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.graph.nodes:
        if node.op == "placeholder" or (node.op != "output" and (not known or last not in known)):
            known[node] = part.node_copy(node, known.__getitem__)
    part.output((known[last],))
    return torch.fx.GraphModule(graph, part)


def place_of(node: torch.fx.Node) -> SourceLine:
    """Return the innermost line of the user's code that a node comes from."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    for line in reversed(lines):
        if line.startswith('File "'):
            file, _, rest = line.removeprefix('File "').partition('", line ')
            number = rest.partition(",")[0]
            if is_of_user(file) and number.isdecimal():
                return SourceLine(file, int(number))
    return SourceLine()


def _with_constants(graph: torch.fx.GraphModule, other: Callable[[Any], Any]) -> torch.fx.GraphModule:
    """Return a copy of the graph with other constants, also in the graphs that it passes to operators such as `cond`. A
    backend may change the original."""
    result = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in result.graph.nodes:
        node.args, node.kwargs = map_leaves((tuple(node.args), dict(node.kwargs)), other)
        inner = getattr(result, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            setattr(result, str(node.target), _with_constants(inner, other))
    result.recompile()
    return result
