"""The only interface to tinygrad's scheduler: many lazy values computed in one schedule.

Defines `realize` (compute now), `compiled` (a schedule that has not run) and `replayed` (run one over other buffers).

The caller passes the lazy values that stay lazy, and gets them back rewritten to read the computed buffers. So no value
is computed twice, and this module needs no registry of live values.

This module must not depend on torch, storages or strides.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tinygrad.engine.realize import compile_linear, link_linear, run_linear
from tinygrad.helpers import PARALLEL, Context, GlobalCounters
from tinygrad.schedule import create_linear_with_vars
from tinygrad.schedule.memory import memory_plan_rewrite
from tinygrad.tensor import transform_to_call
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from . import pieces, trace
from .counters import COUNTERS
from .expressions import is_rearranged, shaped_like, strip_reshapes
from .kernel_spans import run_measured
from .lock import LOCK
from .materialization import read_by_all, remaining
from .memory import check_fork, open_device
from .moving_offsets import share_programs
from .replay import Graph, Replay, canonical, kernel_names, recorded
from .schedule_cache import ScheduleKey, Schedules, subject
from .subnormals import Subnormals

# tinygrad compiles in spawned processes, which run a user's script again if it has no __main__ guard.
if "PARALLEL" not in os.environ:
    PARALLEL.value = 0

SCHEDULES = Schedules()
PIECES = os.environ.get("TINY_PIECES", "1") != "0"  # whether large repetitive graphs are scheduled in pieces


def realize(
    values: Sequence[UOp],
    device: str,
    others: Sequence[UOp] = (),
    why: str = "observed",
    begin: Callable[[], None] = lambda: None,
) -> tuple[list[UOp], list[UOp]]:
    """Compute `values` in one schedule; `why` is the reason in a trace, and `begin` is called before the first kernel.

    Returns the values as realized buffers, and `others` (lazy values that stay lazy), rewritten to read the computed
    buffers instead of computing them again.
    """
    with LOCK, Subnormals():
        open_device(device)
        wanted = [v.clone(device) if v.device is None or is_rearranged(v) else v for v in values]
        pending = [v for v in wanted if not v.has_buffer_identity()]
        if not pending:
            return wanted, list(others)
        before, start = GlobalCounters.kernel_count, time.perf_counter()
        graph = canonical(pending)
        points = remaining(graph.nodes, others)
        of = subject((*graph.key, *points.key, *(() if PIECES else ("whole",))), device)
        replay, origin = SCHEDULES.get(of)
        if replay is not None:
            scheduled = time.perf_counter()
            begin()
            slots = replay.run(graph.buffers)
            done, becomes = _outcome(replay, graph, pending, slots)
            if trace.LISTENERS:
                spent = scheduled - start, 0.0, time.perf_counter() - scheduled
                trace.notify(trace.Schedule(why, replay.names, len(pending), origin, *spent))
            _note(WatchedSchedule(replay, graph, values, slots, device))
        else:
            done, becomes = _schedule(of, graph, pending, points.passing, why, begin)
            _note(None)
        COUNTERS.kernels += GlobalCounters.kernel_count - before
        COUNTERS.schedules += 1
        finished = iter(done)
        results = [v if v.has_buffer_identity() else next(finished) for v in wanted]
        for v, w, r in zip(values, wanted, results, strict=True):
            if v is not w:  # computed as a copy
                becomes[strip_reshapes(v)] = shaped_like(r.base, strip_reshapes(v))
        return results, _rewritten(others, becomes, graph.calls)


def _schedule(
    of: ScheduleKey, graph: Graph, pending: list[UOp], passing: set[UOp], why: str, begin: Callable[[], None]
) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Schedule and run a graph; returns (the values as buffers, the buffer of each computed node)."""
    start = time.perf_counter()
    replay = _schedule_in_pieces(graph, pending, passing, of.device)
    if replay is not None:
        scheduled = time.perf_counter()
        begin()
        done, becomes = _outcome(replay, graph, pending, replay.run(graph.buffers))
        SCHEDULES.put(of, replay)
        if trace.LISTENERS:
            spent = scheduled - start, 0.0, time.perf_counter() - scheduled
            trace.notify(trace.Schedule(why, replay.names, len(pending), "scheduled", *spent))
        return done, becomes
    linear, variables, done, becomes = _scheduled(pending, graph.buffers, passing)
    scheduled = time.perf_counter()
    kept = not variables and all(v.has_buffer_identity() for v in [*done, *becomes.values()])
    ready = compile_linear(share_programs(linear) if kept else linear)
    coded = time.perf_counter()
    names, span = kernel_names([call.src[0] for call in ready.src]), trace.kernel_span()
    if kept:
        replay = recorded(graph, ready, done, becomes)
        begin()
        done, becomes = _outcome(replay, graph, pending, replay.run(graph.buffers))
        SCHEDULES.put(of, replay)
    else:
        linked = link_linear(ready)
        begin()
        if span is None:
            run_linear(linked, variables, jit=True)
        else:
            run_measured(span, linked, names, variables)
    if trace.LISTENERS:
        spent = scheduled - start, coded - scheduled, time.perf_counter() - coded
        trace.notify(trace.Schedule(why, names, len(pending), "scheduled", *spent))
    return done, becomes


def _schedule_in_pieces(graph: Graph, values: list[UOp], passing: set[UOp], device: str) -> Replay | None:
    """The schedule of a large repetitive graph from those of its pieces; None if it is to be scheduled whole."""
    if not PIECES or len(graph.nodes) < pieces.MIN_NODES:
        return None
    read, shared = read_by_all(values)
    equal, moved = pieces.with_contiguous_parts(read)
    new = {node: moved.get(n := shared.get(node, node), n) for node in graph.nodes}
    old = {n: o for o, n in new.items()}
    points = {node for node in graph.nodes if node.op is Ops.CONTIGUOUS and node not in passing}
    found = pieces.divided(equal, {new[node] for node in points})
    if found is None:
        return None
    division, parts = found
    known: dict[ScheduleKey, Replay] = {}
    for part in parts:
        of = subject(part.key, device)
        if of not in known:
            replay, _ = SCHEDULES.get(of)
            if replay is None:
                replay = _piece(of, division, part)
                if replay is None:
                    return None
            known[of] = replay
        part.replay = known[of]
    COUNTERS.divided += 1
    return pieces.merged(division, parts, graph, lambda node: old.get(node, node))


def _piece(of: ScheduleKey, division: pieces.Division, part: pieces.Piece) -> Replay | None:
    """The new schedule of a piece; None if it does not consist of kernels only."""
    value, buffers = division.graph_of(part)
    inner = {node for node in value.toposort(enter_calls=False) if node.op is Ops.CONTIGUOUS and node is not value}
    linear, variables, done, _ = _scheduled([value], buffers, inner)
    if variables or not done[0].has_buffer_identity():
        return None
    replay = recorded(Graph(part.key, [], buffers, set()), compile_linear(share_programs(linear)), done, {})
    SCHEDULES.put(of, replay)
    return replay


def _outcome(
    replay: Replay, graph: Graph, values: Sequence[UOp], slots: Sequence[UOp]
) -> tuple[list[UOp], dict[UOp, UOp]]:
    """The values as buffers, and the buffer of each computed node, after a schedule has run."""
    done = [shaped_like(slots[i], v) for i, v in zip(replay.results, values, strict=True)]
    return done, {graph.nodes[k]: shaped_like(slots[i], graph.nodes[k]) for k, i in replay.becomes}


def _scheduled(
    values: list[UOp], buffers: Sequence[UOp], passing: set[UOp]
) -> tuple[UOp, dict[str, int], list[UOp], dict[UOp, UOp]]:
    """tinygrad's schedule for values over `buffers`, its variables, the values as buffers, and the buffer of each node.

    Each of these buffers has the node's shape, or is reshaped to it, as in a replay of the schedule. The nodes in
    `passing` get no buffers: like other intermediate values they share memory with earlier and later ones.
    """
    equal, new = read_by_all(values)
    call, replaced = transform_to_call(UOp.sink(*equal))
    with Context(NO_MEMORY_PLANNER=1):
        linear, variables = create_linear_with_vars(call)
    done = UOp.sink(*equal).substitute(replaced, walk=True).src
    old = {n: o for o, n in new.items()}
    becomes = {old.get(n, n): v for n, v in replaced.items()}
    held = {*buffers, *[v.base for v in done], *[v.base for n, v in becomes.items() if n not in passing]}
    COUNTERS.scheduled += 1
    learnt = {n: _plain(v, n) for n, v in becomes.items() if v.base in held}
    return memory_plan_rewrite(linear, held), variables, [_plain(v, v) for v in done], learnt


def _plain(value: UOp, node: UOp) -> UOp:
    return shaped_like(value.base, node) if value.has_buffer_identity() else value


def compiled(values: Sequence[UOp], device: str) -> tuple[Replay, list[UOp]]:
    """A schedule for `values` that has not run, and the buffers of their graph in order; some may still be empty."""
    with LOCK:
        open_device(device)
        wanted = [
            v.clone(device) if v.device is None or is_rearranged(v) or v.has_buffer_identity() else v for v in values
        ]
        graph = canonical(wanted)
        points = remaining(graph.nodes, ())
        of = subject((*graph.key, *points.key), device)
        replay, _ = SCHEDULES.get(of)
        if replay is None:
            linear, variables, done, becomes = _scheduled(wanted, graph.buffers, points.passing)
            assert not variables
            kept = {n: v for n, v in becomes.items() if v.has_buffer_identity()}
            replay = recorded(graph, compile_linear(share_programs(linear)), done, kept)
            if len(kept) == len(becomes):
                SCHEDULES.put(of, replay)
        return replay, graph.buffers


def replayed(replay: Replay, buffers: Sequence[UOp]) -> list[UOp]:
    """Run a schedule over realized buffers; returns its results as flat buffers."""
    with LOCK, Subnormals():
        check_fork()
        before, start = GlobalCounters.kernel_count, time.perf_counter()
        slots = replay.run(buffers)
        results = [slots[i] for i in replay.results]
        if trace.LISTENERS:
            spent = 0.0, 0.0, time.perf_counter() - start
            trace.notify(trace.Schedule("compiled", replay.names, len(results), "memory", *spent))
        COUNTERS.kernels += GlobalCounters.kernel_count - before
        COUNTERS.schedules += 1
        return results


def rerun(replay: Replay, buffers: Sequence[UOp], why: str, begin: Callable[[], None]) -> list[UOp]:
    """Run a schedule over realized buffers as `realize` does; returns all its slots as flat buffers."""
    with LOCK, Subnormals():
        before, start = GlobalCounters.kernel_count, time.perf_counter()
        begin()
        slots = replay.run(buffers)
        if trace.LISTENERS:
            spent = 0.0, 0.0, time.perf_counter() - start
            trace.notify(trace.Schedule(why, replay.names, len(replay.results), "memory", *spent))
        COUNTERS.kernels += GlobalCounters.kernel_count - before
        COUNTERS.schedules += 1
        return slots


class WatchedSchedule(NamedTuple):
    """A schedule that `realize` ran."""

    replay: Replay
    graph: Graph
    values: Sequence[UOp]  # which were requested
    slots: Sequence[UOp]  # the graph's buffers, and new ones
    device: str


_watched: list[WatchedSchedule | None] | None = None


@contextlib.contextmanager
def watched() -> Iterator[list[WatchedSchedule | None]]:
    """Within the block: each schedule that `realize` runs; None for a new one."""
    global _watched
    _watched = []
    try:
        yield _watched
    finally:
        _watched = None


def _note(schedule: WatchedSchedule | None) -> None:
    if _watched is not None:
        _watched.append(schedule)


def _rewritten(others: Sequence[UOp], becomes: dict[UOp, UOp], calls: set[UOp]) -> list[UOp]:
    """Lazy values with computed nodes replaced by their buffers.

    A kernel that was called has written all its buffers, including those that the schedule did not need.
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
