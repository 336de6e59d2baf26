"""Remembered schedules: a graph equal to an earlier one, buffers aside, runs again without being scheduled.

Defines `canonical` (a graph with its buffers numbered, as a key) and `Replays` (what to run for a key).

The key insight: a training loop records the same lazy graph at every step over other buffers. tinygrad remembers its
kernels, yet rewrites the whole graph in Python each time before it can look them up; comparing two graphs node by node
costs a fraction of that. A schedule is kept as tinygrad's own TinyJit keeps one: a list of calls whose inputs and
outputs are parameters.
Must not know storages or torch.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad.device import Buffer, MultiBuffer
from tinygrad.engine.realize import get_call_arg_uops, get_runtime, run_linear
from tinygrad.helpers import DEBUG, PROFILE, GlobalCounters, ansistrip
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp
from tinygrad.uop.ops import buffers as buffers_of_nodes

if TYPE_CHECKING:
    from tinygrad.runtime.ops_cpu import CPUProgram

Key = tuple[Any, ...]

SEEN_KEPT = 1024  # keys seen once
PLANS_KEPT = 128  # schedules


def canonical(values: Sequence[UOp]) -> tuple[Key, list[UOp], set[UOp]]:
    """The graph of `values` as a key that is equal for equal graphs over other buffers, its buffers in order, and the
    kernels that stand in it as calls: these write to buffers of the graph."""
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
    return tuple(key), buffers, calls


class Launch(NamedTuple):
    """One kernel of a schedule, ready to run on any device."""

    program: Callable[..., Any]
    device: str
    places: tuple[int, ...]  # of its buffers, among the slots and then the intermediate buffers
    options: dict[str, Any]  # global_size, local_size, vals

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run it."""
        self.program(*[held[i].get_buf(self.device) for i in self.places], **self.options)
        GlobalCounters.kernel_count += 1


class HostLaunch(NamedTuple):
    """One kernel in this process's own memory: its machine code is called with addresses, and nothing else."""

    code: Callable[..., None]
    program: CPUProgram  # keeps the code's memory
    places: tuple[int, ...]
    threads: list[tuple[int, ...]]  # the numbers that follow the addresses, for each thread of it

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run it."""
        arguments = [addresses[i] for i in self.places]
        for numbers in self.threads:
            self.code(*arguments, *numbers)
        GlobalCounters.kernel_count += 1


class Call(NamedTuple):
    """What is no plain kernel (a copy between devices, say): a call for tinygrad to run."""

    call: UOp

    def __call__(self, held: list[Buffer], addresses: list[int], slots: list[UOp]) -> None:
        """Run it."""
        run_linear(UOp(Ops.LINEAR, src=(self.call,)), {}, input_uops=slots, jit=True)


@dataclass
class Replay:
    """A compiled schedule: slots 0 to n-1 are the graph's buffers in order, those after it new buffers for results."""

    steps: list[Launch | HostLaunch | Call]
    fresh: list[tuple[str, int, Any]]  # (device, size, dtype) of each new buffer
    results: list[int]  # the slot that holds each value
    intermediates: list[Buffer]
    names: tuple[str, ...]  # of the kernels, in order

    def run(self, buffers: Sequence[UOp]) -> list[UOp]:
        """Run over these buffers; the results as flat buffers."""
        slots = [*buffers, *[UOp.new_buffer(*spec) for spec in self.fresh]]
        held = [(buffers_of_nodes.get(s) or s.buffer).ensure_allocated() for s in slots]  # type: ignore[union-attr]
        held += [b.ensure_allocated() for b in self.intermediates]
        addresses = [getattr(b._buf, "va_addr", 0) for b in held]
        for step in self.steps:
            step(held, addresses, slots)
        self._free()
        return [slots[i] for i in self.results]

    def _free(self) -> None:
        """Give the memory of intermediate values back; the allocator keeps it at hand for the next run."""
        for buffer in self.intermediates:
            if buffer.is_initialized():
                buffer.deallocate()
            base = buffer._base
            if base is not None and base.allocated_views == 0 and base.is_allocated():
                base.deallocate()


def kernel_names(linear: UOp) -> tuple[str, ...]:
    """tinygrad's names of a schedule's kernels, in order: r_ for reductions, E_ for elementwise work, copies."""
    heads = [call.src[0] for call in linear.src]
    return tuple(ansistrip(h.arg.name) if h.op is Ops.PROGRAM else h.op.name.lower() for h in heads)


def _step(call: UOp, places: dict[Any, int]) -> Launch | HostLaunch | Call:
    """How to run a call; `places` has the slots and gets each intermediate buffer, parts of others among them."""
    head, arguments = call.src[0], get_call_arg_uops(call)
    if DEBUG >= 2 or PROFILE or head.op is not Ops.PROGRAM or not isinstance(call.src[1].device, str):
        return Call(call)  # tinygrad prints and records what it runs itself
    device = call.src[1].device
    found: list[int] = []
    local = True
    for argument in [arguments[i] for i in head.arg.globals]:
        if argument.op is Ops.PARAM:
            found.append(argument.arg.slot)
        elif any(u.op is Ops.PARAM for u in argument.toposort()) or isinstance(argument.buffer, MultiBuffer):
            return Call(call)
        else:
            found.append(places.setdefault(argument.buffer, len(places)))
        local = local and argument.device == device
    variables = [v.expr for v in head.arg.vars]
    program = get_runtime(device, head)
    global_size, local_size = head.arg.launch_dims({})
    if local and variables in ([], ["core_id"]) and _is_host_code(program):
        # tinygrad numbers the threads of such a kernel, which run one after the other, in the place of that variable.
        threads: list[tuple[int, ...]] = [(i,) for i in range(global_size[0])] if variables else [()]
        code = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * (len(found) + len(variables)))(program.addr)
        return HostLaunch(code, program, tuple(found), threads)
    if variables:
        return Call(call)
    return Launch(program, device, tuple(found), {"global_size": global_size, "local_size": local_size, "vals": ()})


def _is_host_code(program: Any) -> bool:
    """Whether a program is a C function of addresses in this process (that of LLVM's Vulkan driver is not)."""
    from tinygrad.runtime.ops_cpu import CPUProgram

    return isinstance(program, CPUProgram) and not program.lvp


class Replays:
    """Schedules by key. A key is recorded when it is met the second time: most graphs are met once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._plans: OrderedDict[Key, Replay] = OrderedDict()

    def forget(self) -> None:
        """Begin again, as in a new process."""
        self._seen.clear()
        self._plans.clear()

    def get(self, key: Key) -> Replay | None:
        """The schedule for a graph, None where there is none yet."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def repeated(self, key: Key) -> bool:
        """Whether this key was met before; it has been from now on."""
        if key in self._seen:
            del self._seen[key]
            return True
        self._seen[key] = None
        if len(self._seen) > SEEN_KEPT:
            self._seen.popitem(last=False)
        return False

    def record(self, key: Key, buffers: Sequence[UOp], linear: UOp, outcomes: Sequence[UOp]) -> Replay:
        """Keep the compiled schedule that computed `outcomes` (values with buffer identity) for this key."""
        slots = {b: i for i, b in enumerate(buffers)}
        fresh = list(dict.fromkeys(v.base for v in outcomes if v.base not in slots))
        slots |= {b: len(slots) + i for i, b in enumerate(fresh)}
        parameters = {b: UOp.param(i, b.dtype, b.shape, b.device) for b, i in slots.items()}
        template = linear.substitute(parameters, walk=True)
        # What lies between stays where this run has put it, for whoever reads it there: the next runs have their own.
        between = [u for u in template.toposort(enter_calls=True) if u.op is Ops.BUFFER and u.arg.device is not None]
        own = {u: UOp.new_buffer(u.arg.device, u.max_numel(), u.dtype) for u in between}
        template, kept = template.substitute(own, walk=True), list(own.values())
        specs = [(b.arg.device, b.max_numel(), b.dtype) for b in fresh]
        places: dict[Any, int] = dict(slots)
        steps = [_step(call, places) for call in template.src]
        whole = [b for b in (u.buffer for u in kept) if not isinstance(b, MultiBuffer)]
        inner = list(dict.fromkeys([*list(places)[len(slots) :], *whole]))
        plan = self._plans[key] = Replay(steps, specs, [slots[v.base] for v in outcomes], inner, kernel_names(linear))
        if len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return plan


__all__ = ["Replay", "Replays", "canonical"]
