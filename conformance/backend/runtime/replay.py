"""A schedule as data: a graph that equals an earlier one, with other buffers, runs without being scheduled again.

Defines `canonical` (a graph with its buffers numbered, as a key), `recorded` (tinygrad's schedule as a `Replay`) and
`Replay` (which runs over other buffers).

The key insight: a training loop makes the same lazy graph at every step over other buffers. A second run of a test
suite repeats the graphs of the first. tinygrad caches its kernels, but rewrites the whole graph in Python before each
look-up. Comparing two graphs node by node costs a fraction of that. A schedule reduces to a list of programs, and for
each the numbers of its buffers.

This module must not depend on storages or torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad.device import Buffer, MultiBuffer
from tinygrad.dtype import DType, dtypes
from tinygrad.engine.realize import get_call_arg_uops, get_runtime, run_linear
from tinygrad.helpers import DEBUG, PROFILE, GlobalCounters, ansistrip
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp
from tinygrad.uop.ops import buffers as buffers_of_nodes

from . import trace
from .kernel_spans import devices_of, measured
from .moving_offsets import numbers_of

if TYPE_CHECKING:
    from tinygrad.runtime.ops_cpu import CPUProgram

Key = tuple[Any, ...]
CORE = "core_id"  # the variable in which tinygrad passes the number of a thread


class Graph(NamedTuple):
    """The graph of some values."""

    key: Key  # equal for equal graphs over other buffers
    nodes: list[UOp]  # in order, without those inside kernels that appear in it as calls
    buffers: list[UOp]  # in order
    calls: set[UOp]  # these kernels, which write to buffers of the graph


def canonical(values: Sequence[UOp]) -> Graph:
    """The graph of `values`."""
    index: dict[UOp, int] = {}
    buffers: list[UOp] = []
    calls: set[UOp] = set()
    key: list[Any] = []
    for node in UOp.sink(*values).toposort(enter_calls=False):
        place = index[node] = len(index)
        if node.op is Ops.BUFFER:
            buffers.append(node)
            key.append((node.arg.dtype, node.arg.device, node.arg.addrspace, *[index[s] for s in node.src]))
        elif node.op is Ops.CALL:
            calls.add(node)
            key.append((node.src[0], *[place - index[s] for s in node.src[1:]]))
        else:
            key.append((node.op, node.dtype, node.arg, *[place - index[s] for s in node.src]))
    return Graph(tuple(key), list(index), buffers, calls)


class ArgumentPlace(NamedTuple):
    """Location of an argument of a kernel: a buffer, or a part of one."""

    whole: int  # index into the slots, followed by the scratch buffers
    offset: int  # bytes
    nbytes: int  # 0 for the whole buffer


class Kernel(NamedTuple):
    """One kernel of a schedule, as data."""

    program: UOp
    device: str
    places: tuple[ArgumentPlace, ...]
    local: bool  # whether all its arguments are on the kernel's device
    offsets: dict[str, int]  # the values of the program's variables

    @property
    def devices(self) -> set[str]:
        """tinygrad's names of the devices that run it."""
        return {self.device}

    def bound(self) -> Launch | HostLaunch | None:
        """The kernel loaded, ready to run; None if only tinygrad can run it."""
        program, arguments = get_runtime(self.device, self.program), self.program.arg
        variables = [v.expr for v in arguments.vars]
        if not self.offsets.keys() >= set(variables) - {CORE}:
            return None
        global_size, local_size = arguments.launch_dims(self.offsets)
        if self.local and _is_host_code(program):
            # tinygrad numbers the threads of such a kernel in that variable. Here they run one after the other.
            cores = range(global_size[0] if CORE in variables else 1)
            threads = [tuple([core if v == CORE else self.offsets[v] for v in variables]) for core in cores]
            words = [ctypes.c_uint64] * len(self.places) + [ctypes.c_int64] * len(variables)
            return HostLaunch(ctypes.CFUNCTYPE(None, *words)(program.addr), program, self.places, threads)
        if CORE in variables:
            return None
        sizes = {"global_size": global_size, "local_size": local_size, "vals": arguments.vals(self.offsets)}
        return Launch(program, self.device, self.places, sizes)


class Launch(NamedTuple):
    """A kernel, ready to run on any device."""

    program: Callable[..., Any]
    device: str
    places: tuple[ArgumentPlace, ...]
    options: dict[str, Any]  # global_size, local_size, vals

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run the kernel."""
        buffers = [held[i].view(size, dtypes.uint8, offset) if size else held[i] for i, offset, size in self.places]
        self.program(*[buffer.get_buf(self.device) for buffer in buffers], **self.options)
        GlobalCounters.kernel_count += 1


class HostLaunch(NamedTuple):
    """A kernel in this process's own memory: its machine code is called with addresses only."""

    code: Callable[..., None]
    program: CPUProgram  # keeps the code's memory
    places: tuple[ArgumentPlace, ...]
    threads: Sequence[tuple[int, ...]]  # the numbers that follow the addresses, for each thread

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run the kernel."""
        arguments = [addresses[i] + offset for i, offset, _ in self.places]
        for numbers in self.threads:
            self.code(*arguments, *numbers)
        GlobalCounters.kernel_count += 1


class TinygradCall(NamedTuple):
    """A step that is not a plain kernel (a copy between devices, for example): a call that tinygrad runs."""

    call: UOp

    @property
    def devices(self) -> set[str]:
        """tinygrad's names of the devices that the call uses."""
        return devices_of(self.call)

    def bound(self) -> TinygradCall:
        """The call itself."""
        return self

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run the call."""
        run_linear(UOp(Ops.LINEAR, src=(self.call,)), numbers_of(self.call), input_uops=slots, jit=True)


Spec = tuple[str, int, DType]  # of a buffer: device, size, dtype


@dataclass
class Replay:
    """A compiled schedule: slots 0 to n-1 are the graph's buffers in order, and the next slots new buffers for
    results.
    """

    kernels: list[Kernel | TinygradCall]
    fresh: list[Spec]  # of each new buffer
    results: list[int]  # the slot that holds each value
    becomes: list[tuple[int, int]]  # of nodes of the graph, by number: the slot that holds each from then on
    scratch: list[Buffer]  # for intermediate values
    views: list[Buffer] = field(default_factory=list)  # parts of these that a Call opens
    steps: list[Launch | HostLaunch | TinygradCall] = field(init=False)

    def __post_init__(self) -> None:
        steps = [k.bound() for k in self.kernels]
        assert None not in steps
        self.steps = steps  # type: ignore[assignment]

    @property
    def names(self) -> tuple[str, ...]:
        """tinygrad's names of the kernels, in order."""
        return kernel_names([k.program if isinstance(k, Kernel) else k.call.src[0] for k in self.kernels])

    def run(self, buffers: Sequence[UOp]) -> list[UOp]:
        """Run over these buffers; returns all slots, as flat buffers."""
        held = [(buffers_of_nodes.get(b) or b.buffer).ensure_allocated() for b in buffers]  # type: ignore[union-attr]
        slots = list(buffers)
        for spec in self.fresh:
            held.append(Buffer(*spec).ref(1).allocate())
            slots.append(UOp.new_buffer(*spec))
            buffers_of_nodes[slots[-1]] = held[-1]  # as UOp.buffer does, which first walks the graph
        held += [b.ensure_allocated() for b in self.scratch]
        addresses = [getattr(b._buf, "va_addr", 0) for b in held]
        span = trace.kernel_span()
        if span is None:
            for step in self.steps:
                step(held, addresses, slots)
        else:
            for step, name, kernel in zip(self.steps, self.names, self.kernels, strict=True):
                with measured(span, name, kernel.devices):
                    step(held, addresses, slots)
        self._free()
        return slots

    def _free(self) -> None:
        """Return the memory of intermediate values; the allocator keeps it for the next run."""
        for buffer in self.views:
            if buffer.is_initialized():
                buffer.deallocate()
        for buffer in self.scratch:
            if buffer.is_allocated() and buffer.allocated_views == 0:
                buffer.deallocate()


def kernel_names(heads: Sequence[UOp]) -> tuple[str, ...]:
    """tinygrad's names of the targets of calls: r_ for reductions, E_ for elementwise work, copies."""
    return tuple(ansistrip(h.arg.name) if h.op is Ops.PROGRAM else h.op.name.lower() for h in heads)


def recorded(graph: Graph, linear: UOp, outcomes: Sequence[UOp], becomes: dict[UOp, UOp]) -> Replay:
    """The compiled schedule `linear` of a graph as data.

    `outcomes` are its values. `becomes` maps all kept nodes to (reshaped) buffers.
    """
    slots = {b: i for i, b in enumerate(graph.buffers)}
    fresh = list(dict.fromkeys(v.base for v in [*outcomes, *becomes.values()] if v.base not in slots))
    slots |= {b: len(slots) + i for i, b in enumerate(fresh)}
    wholes: dict[Any, int] = {b.buffer: i for b, i in slots.items()}
    kernels = [_kernel(call, wholes) or TinygradCall(call) for call in linear.src]
    scratch: list[Buffer] = list(wholes)[len(slots) :]
    views: list[Buffer] = []
    if any(isinstance(k, TinygradCall) for k in kernels):
        parameters = {b: UOp.param(i, b.dtype, b.shape, b.device) for b, i in slots.items()}
        kernels = [
            TinygradCall(k.call.substitute(parameters, walk=True)) if isinstance(k, TinygradCall) else k
            for k in kernels
        ]
        arguments = [a for k in kernels if isinstance(k, TinygradCall) for a in get_call_arg_uops(k.call)]
        opened = [b for b in [a.buffer for a in arguments if _own(a)] if isinstance(b, Buffer)]
        scratch = list(dict.fromkeys([*scratch, *[b.base for b in opened]]))
        views = [b for b in opened if b is not b.base]
    else:  # the schedule's own buffers are not kept: views of them may be open
        scratch = [Buffer(b.device, b.size, b.dtype) for b in scratch]
    number = {node: i for i, node in enumerate(graph.nodes)}
    learnt = [(number[node], slots[value.base]) for node, value in becomes.items()]
    specs = [(b.arg.device, b.max_numel(), b.dtype) for b in fresh]
    return Replay(kernels, specs, [slots[v.base] for v in outcomes], learnt, scratch, views)


def _own(argument: UOp) -> bool:
    """Whether an argument of a call belongs to the schedule: neither a parameter, nor a view of one."""
    return not any(u.op is Ops.PARAM for u in argument.toposort())


def _kernel(call: UOp, wholes: dict[Any, int]) -> Kernel | None:
    """A call as data, None if it is no plain kernel; `wholes` has the slots, and each intermediate buffer is added."""
    head = call.src[0]
    if DEBUG >= 2 or PROFILE or head.op is not Ops.PROGRAM or not isinstance(call.src[1].device, str):
        return None  # tinygrad prints and records only calls that it runs
    arguments = get_call_arg_uops(call)
    buffers = [arguments[i].buffer for i in head.arg.globals]
    if any(isinstance(b, MultiBuffer) for b in buffers):
        return None
    device = call.src[1].device
    places = []
    for buffer in buffers:
        assert isinstance(buffer, Buffer)
        if buffer in wholes:
            places.append(ArgumentPlace(wholes[buffer], 0, 0))
        else:
            whole = wholes.setdefault(buffer.base, len(wholes))
            places.append(ArgumentPlace(whole, buffer.offset, 0 if buffer.base is buffer else buffer.nbytes))
    kernel = Kernel(head, device, tuple(places), all(b.device == device for b in buffers), numbers_of(call))
    return kernel if kernel.bound() is not None else None


def _is_host_code(program: Any) -> bool:
    """Whether a program is a C function of addresses in this process (that of LLVM's Vulkan driver is not)."""
    from tinygrad.runtime.ops_cpu import CPUProgram

    return isinstance(program, CPUProgram) and not program.lvp


__all__ = ["Graph", "Replay", "canonical", "recorded"]
