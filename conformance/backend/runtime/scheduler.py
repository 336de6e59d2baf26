"""The one door to tinygrad's scheduler: host memory in, host memory out, and many lazy values realized in one schedule.

Defines `from_host`, `to_host`, `realize`, `compiled`, and `measure`, the size of an expression.

The key insight: tinygrad's `UOp` has the whole tensor API, so values are UOps and nothing else; `Tensor` with its
global registry of live tensors is not used, and the caller says which lazy values must learn of a realization.
Must not know torch, storages or strides.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinygrad.device import Buffer, Device
from tinygrad.dtype import DType
from tinygrad.engine.realize import compile_linear, link_linear, run_linear
from tinygrad.helpers import DEV, PARALLEL, Context, GlobalCounters
from tinygrad.schedule import create_linear_with_vars
from tinygrad.schedule.memory import memory_plan_rewrite
from tinygrad.tensor import transform_to_call
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp
from tinygrad.uop.ops import buffers as _buffers

from . import trace
from .counters import COUNTERS
from .materialization import read_by_all, remaining
from .replay import Graph, Replay, canonical, kernel_names, recorded
from .schedule_cache import Schedules, Subject, subject
from .toolchain import ensure_compiler

# tinygrad compiles in spawned processes, which run a user's script again where it has no __main__ guard.
if "PARALLEL" not in os.environ:
    PARALLEL.value = 0

# Schedules and buffers are process-wide state in tinygrad, which does no locking of its own.
LOCK = threading.RLock()


SCHEDULES = Schedules()


def device_name(index: int = 0) -> str:
    """tinygrad's name of the device behind `tiny:index`: what ``DEV`` selects, the CPU where it selects nothing."""
    base = DEV.device or "CPU"
    return base if index == 0 else f"{base}:{index}"


_opened: set[str] = set()


def _open(device: str) -> None:
    """Open tinygrad's device once; its CPU device starts a C compiler when it opens. Raises ToolchainError."""
    if device not in _opened:
        ensure_compiler()
        Device[device]
        _opened.add(device)


def host_addressable(device: str) -> bool:
    """Whether buffers of this tinygrad device are ordinary memory of this process."""
    return device.split(":")[0] == "CPU"


def from_host(data: Any, dtype: DType, device: str) -> UOp:
    """A realized flat value of `dtype` which holds a copy of `data`, a contiguous array or buffer."""
    data = memoryview(data)
    with LOCK:
        _open(device)
        size = data.nbytes // dtype.itemsize
        value = UOp.new_buffer(device, size, dtype)
        buffer = value.buffer.allocate()  # type: ignore[union-attr]
        if host_addressable(device):
            buffer.as_memoryview(force_zero_copy=True, no_sync=False)[:] = data.cast("B")
        else:
            buffer.copy_from(Buffer("PYTHON", size, dtype, opaque=data.cast("B")))
        COUNTERS.copies_in += 1
        COUNTERS.bytes_in += data.nbytes
        if trace.LISTENERS:
            trace.tell(trace.Copy("in", data.nbytes))
        return value


_generation = 0


def generation() -> int:
    """How many writes into buffers there have been: what was learnt of a buffer's content holds within one."""
    return _generation


def overwritten() -> None:
    """Buffers have got other contents than they had."""
    global _generation
    _generation += 1


def count_store() -> None:
    """A buffer's own memory has been written by the host."""
    COUNTERS.stored += 1
    if trace.LISTENERS:
        trace.tell(trace.Store())


def memory(value: UOp) -> memoryview:
    """The memory of a realized flat value itself, where the host can address it."""
    buffer: Buffer = value.base.buffer.ensure_allocated()  # type: ignore[assignment,union-attr]
    return buffer.as_memoryview(force_zero_copy=True)


def to_host(value: UOp, needed: int | None = None) -> memoryview:
    """The bytes of a realized flat value: a copy, or where the host can address it the memory itself (do not write).

    `needed` is how many of them are read: where nothing is copied, only those count.
    """
    with LOCK:
        buffer: Buffer = value.base.buffer.ensure_allocated()  # type: ignore[assignment,union-attr]
        addressable = host_addressable(buffer.device)
        moved = needed if addressable and needed is not None else buffer.nbytes
        COUNTERS.copies_out += 1
        COUNTERS.bytes_out += moved
        if trace.LISTENERS:
            trace.tell(trace.Copy("out", moved))
        return buffer.as_memoryview(force_zero_copy=True) if addressable else buffer.as_memoryview()


def constant_of(value: UOp) -> float | int | bool | None:
    """The Python number that every element of `value` is known to equal, or None where that is not known."""
    while value.op in _CONSTANT_PRESERVING:
        value = value.src[0]
    return value.val if value.op is Ops.CONST else None  # type: ignore[return-value]


_CONSTANT_PRESERVING = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP})


def is_realized(value: UOp) -> bool:
    """Whether `value` is a buffer that already holds its content."""
    if value.op is Ops.BUFFER:
        held = _buffers.get(value)
        return held is not None and held.is_allocated()
    return value.has_buffer_identity() and value.base.realized is not None


def kept(buffer: UOp) -> UOp:
    """A buffer that holds its content; for one that a kernel has yet to fill, a new one, since others may be filled."""
    return buffer if is_realized(buffer) else UOp.new_buffer(buffer.arg.device, buffer.max_numel(), buffer.dtype)


def _rearranges(value: UOp) -> bool:
    """Whether a value only rearranges another: tinygrad would compute that other and leave the rearranging lazy."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value.op in GroupOp.Movement or value.op is Ops.BITCAST


def realize(
    values: Sequence[UOp],
    device: str,
    others: Sequence[UOp] = (),
    why: str = "observed",
    begin: Callable[[], None] = lambda: None,
) -> tuple[list[UOp], list[UOp]]:
    """Compute `values` in one schedule; `why` is what a trace says of it, `begin` is called before the first kernel.

    Returns the values as realized buffers, and `others` (lazy values that stay lazy) rewritten to read what was
    computed instead of computing it again.
    """
    with LOCK:
        _open(device)
        wanted = [v.clone(device) if v.device is None or _rearranges(v) else v for v in values]
        pending = [v for v in wanted if not v.has_buffer_identity()]
        if not pending:
            return wanted, list(others)
        before, start = GlobalCounters.kernel_count, time.perf_counter()
        graph = canonical(pending)
        parts = remaining(graph.nodes, others)
        of = subject((*graph.key, *parts.key), device)
        replay, origin = SCHEDULES.get(of)
        if replay is not None:
            found = time.perf_counter()
            begin()
            slots = replay.run(graph.buffers)
            done = [_like(slots[i], v) for i, v in zip(replay.results, pending, strict=True)]
            becomes = {graph.nodes[k]: _like(slots[i], graph.nodes[k]) for k, i in replay.becomes}
            if trace.LISTENERS:
                spent = found - start, 0.0, time.perf_counter() - found
                trace.tell(trace.Schedule(why, replay.names, len(pending), origin, *spent))
        else:
            done, becomes = _schedule(of, graph, pending, parts.passing, why, begin)
        COUNTERS.kernels += GlobalCounters.kernel_count - before
        COUNTERS.schedules += 1
        finished = iter(done)
        results = [v if v.has_buffer_identity() else next(finished) for v in wanted]
        for v, w, r in zip(values, wanted, results, strict=True):
            if v is not w:  # computed as a copy of itself
                becomes[bare(v)] = _like(r.base, bare(v))
        return results, _rewritten(others, becomes, graph.calls)


def _schedule(
    of: Subject, graph: Graph, pending: list[UOp], passing: set[UOp], why: str, begin: Callable[[], None]
) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Schedule and run a graph; (the values as buffers, what each computed node has become)."""
    start = time.perf_counter()
    linear, variables, done, becomes = _scheduled(pending, graph.buffers, passing)
    scheduled = time.perf_counter()
    ready = compile_linear(linear)
    coded = time.perf_counter()
    linked = link_linear(ready)
    begin()
    run_linear(linked, variables, jit=True)
    if trace.LISTENERS:
        spent = scheduled - start, coded - scheduled, time.perf_counter() - coded
        names = kernel_names([call.src[0] for call in ready.src])
        trace.tell(trace.Schedule(why, names, len(pending), "scheduled", *spent))
    if not variables and all(v.has_buffer_identity() for v in [*done, *becomes.values()]):
        SCHEDULES.put(of, recorded(graph, ready, done, becomes))
    return done, becomes


def _scheduled(
    values: list[UOp], buffers: Sequence[UOp], passing: set[UOp]
) -> tuple[UOp, dict[str, int], list[UOp], dict[UOp, UOp]]:
    """tinygrad's schedule for values over `buffers`, its variables, the values as buffers, what each node becomes.

    What becomes a buffer is one in its own shape, or that reshaped: as it is when the schedule runs again. The nodes in
    `passing` become none: like other intermediate values they share memory with those that live before and after them.
    """
    equal, new = read_by_all(values)
    call, found = transform_to_call(UOp.sink(*equal))
    with Context(NO_MEMORY_PLANNER=1):
        linear, variables = create_linear_with_vars(call)
    done = UOp.sink(*equal).substitute(found, walk=True).src
    old = {n: o for o, n in new.items()}
    becomes = {old.get(n, n): v for n, v in found.items()}
    held = {*buffers, *[v.base for v in done], *[v.base for n, v in becomes.items() if n not in passing]}
    COUNTERS.scheduled += 1
    learnt = {n: _plain(v, n) for n, v in becomes.items() if v.base in held}
    return memory_plan_rewrite(linear, held), variables, [_plain(v, v) for v in done], learnt


def _plain(value: UOp, node: UOp) -> UOp:
    return _like(value.base, node) if value.has_buffer_identity() else value


def compiled(values: Sequence[UOp], device: str) -> tuple[Replay, list[UOp]]:
    """A schedule for `values` that has not run, and the buffers of their graph in its order; some may be empty yet."""
    with LOCK:
        _open(device)
        wanted = [
            v.clone(device) if v.device is None or _rearranges(v) or v.has_buffer_identity() else v for v in values
        ]
        graph = canonical(wanted)
        parts = remaining(graph.nodes, ())
        of = subject((*graph.key, *parts.key), device)
        replay, _ = SCHEDULES.get(of)
        if replay is None:
            linear, variables, done, becomes = _scheduled(wanted, graph.buffers, parts.passing)
            assert not variables
            kept = {n: v for n, v in becomes.items() if v.has_buffer_identity()}
            replay = recorded(graph, compile_linear(linear), done, kept)
            if len(kept) == len(becomes):
                SCHEDULES.put(of, replay)
        return replay, graph.buffers


def replayed(replay: Replay, buffers: Sequence[UOp]) -> list[UOp]:
    """Run a schedule over realized buffers; its results as flat buffers."""
    with LOCK:
        before, start = GlobalCounters.kernel_count, time.perf_counter()
        slots = replay.run(buffers)
        results = [slots[i] for i in replay.results]
        if trace.LISTENERS:
            spent = 0.0, 0.0, time.perf_counter() - start
            trace.tell(trace.Schedule("compiled", replay.names, len(results), "memory", *spent))
        COUNTERS.kernels += GlobalCounters.kernel_count - before
        COUNTERS.schedules += 1
        return results


def bare(value: UOp) -> UOp:
    """A value without the reshapes around it: other values share that."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def _like(buffer: UOp, value: UOp) -> UOp:
    """A flat buffer in the shape of a value."""
    return buffer if buffer.shape == value.shape else buffer.reshape(value.shape)


def _rewritten(others: Sequence[UOp], becomes: dict[UOp, UOp], calls: set[UOp]) -> list[UOp]:
    """Lazy values with computed nodes replaced by the buffers they have become.

    A kernel that was called has written all its buffers, whichever of them the schedule was made for.
    """
    seen: dict[UOp, bool] = {}

    def touched(node: UOp) -> bool:
        if node.op is Ops.AFTER and node.src[1] in calls:
            becomes[node] = node.src[0]
        return node in becomes or any(seen.get(s, False) for s in node.src)

    rest = list(others)
    stale = [i for i, v in enumerate(rest) if v.topovisit(touched, seen)]
    if stale:
        new = UOp.sink(*[rest[i] for i in stale]).substitute(becomes, walk=True).src
        for i, v in zip(stale, new, strict=True):
            rest[i] = v
    return rest


class Measure(NamedTuple):
    """The size of a lazy value, as far as it decides how long scheduling and compiling take."""

    depth: int  # operations on the longest path
    nesting: int  # of those, the ones since the last reduction: the depth of one kernel's expression
    cost: int  # operations in that kernel's expression; what is read at several places counts for each


_measures: weakref.WeakKeyDictionary[UOp, Measure] = weakref.WeakKeyDictionary()
_LEAF = Measure(0, 0, 1)
_LEAVES = frozenset({Ops.BUFFER, Ops.CONST, Ops.PARAM, Ops.AFTER, Ops.COPY})
_MOVED = frozenset({Ops.SHRINK, Ops.PAD, Ops.PERMUTE, Ops.FLIP})  # read at another place than its neighbours


def measure(value: UOp) -> Measure:
    """The Measure of a lazy value."""
    known = _measures.get(value)
    if known is not None:
        return known
    stack = [value]
    while stack:
        node = stack[-1]
        if node in _measures:
            stack.pop()
            continue
        sources = () if node.op in _LEAVES else node.src[:1] if node.op in GroupOp.Movement else node.src
        missing = [s for s in sources if s not in _measures]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        _measures[node] = _measured(node, sources)
    return _measures[value]


def _measured(node: UOp, sources: Sequence[UOp]) -> Measure:
    if not sources:
        return _LEAF
    inner = [_measures[s] for s in sources]
    if node.op in GroupOp.Movement:
        return inner[0]
    depth = 1 + max(m.depth for m in inner)
    if node.op is Ops.REDUCE or node.op is Ops.CONTIGUOUS:
        return Measure(depth, 0, 1)
    # Operands read at the same place share their work within a kernel; moved ones are computed again.
    moved = sum(m.cost for s, m in zip(sources, inner, strict=True) if _is_moved(s))
    here = max((m.cost for s, m in zip(sources, inner, strict=True) if not _is_moved(s)), default=0)
    return Measure(depth, 1 + max(m.nesting for m in inner), min(1 + here + moved, 1 << 30))


def _is_moved(value: UOp) -> bool:
    while value.op in GroupOp.Movement:
        if value.op in _MOVED:
            return True
        value = value.src[0]
    return False


def compiler_description() -> str:
    """The compiler behind the device, for reports."""
    compiler = ensure_compiler()
    return f"{compiler.kind} {compiler.version}" if compiler else f"none needed (DEV={os.environ.get('DEV', '')})"


def numel(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)
