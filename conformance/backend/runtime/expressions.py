"""Predicates and measures of lazy values: known constants, realized buffers, and the size of an expression.

Defines `constant_of`, `is_realized`, `read_by`, `strip_reshapes`, and `measure`, which detects graphs that are too
large.

tinygrad's `UOp` has the whole tensor API, so a lazy value is simply a UOp. tinygrad's `Tensor`, with its global
registry of live tensors, is not used.

This module must not depend on torch or storages.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, UOp
from tinygrad.uop.ops import buffers as _buffers


def constant_of(value: UOp) -> float | int | bool | None:
    """The Python number that every element of `value` equals, or None if it is unknown."""
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


def filled_or_new(buffer: UOp) -> UOp:
    """A buffer that holds its content. For a buffer that no kernel has filled yet, a new one, since others may be
    filled.
    """
    return buffer if is_realized(buffer) else UOp.new_buffer(buffer.arg.device, buffer.max_numel(), buffer.dtype)


OUTSIDE = frozenset({Ops.BUFFER, Ops.CALL, Ops.AFTER, Ops.PARAM})


_reads: weakref.WeakKeyDictionary[UOp, frozenset[UOp]] = weakref.WeakKeyDictionary()


def read_by(value: UOp) -> frozenset[UOp]:
    """The memory that a value reads: buffers, and results of kernels; empty if it consists only of numbers.

    Known for each node once asked, as lazy values of one program share most of their nodes.
    """
    known = _reads.get(value)
    if known is not None:
        return known
    found: dict[UOp, frozenset[UOp]] = {}
    for node in value.toposort(gate=lambda node: node not in _reads):
        inner = [found[s] if s in found else _reads[s] for s in node.src]
        reads = max(inner, key=len, default=frozenset[UOp]())
        if not all(one <= reads for one in inner):
            reads = reads.union(*inner)
        if node.op in OUTSIDE:  # not kept: the set would keep the node itself alive
            found[node] = reads | {node}
        else:
            found[node] = _reads[node] = reads
    return found[value]


def is_rearranged(value: UOp) -> bool:
    """Whether a value only rearranges another one; tinygrad would compute that one and leave the rearrangement lazy."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value.op in GroupOp.Movement or value.op is Ops.BITCAST


def strip_reshapes(value: UOp) -> UOp:
    """A value without the reshapes around it; values that differ only in reshapes share the result."""
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def shaped_like(buffer: UOp, value: UOp) -> UOp:
    """A flat buffer in the shape of a value."""
    return buffer if buffer.shape == value.shape else buffer.reshape(value.shape)


class GraphSize(NamedTuple):
    """The size of a lazy value, as far as it affects the time of scheduling and compiling."""

    depth: int  # operations on the longest path
    nesting: int  # of those, operations since the last reduction: the depth of one kernel's expression
    cost: int  # operations in that kernel's expression; an operand read at several places counts for each


_measures: weakref.WeakKeyDictionary[UOp, GraphSize] = weakref.WeakKeyDictionary()
_LEAF = GraphSize(0, 0, 1)
_LEAVES = frozenset({Ops.BUFFER, Ops.CONST, Ops.PARAM, Ops.AFTER, Ops.COPY})
_MOVED = frozenset({Ops.SHRINK, Ops.PAD, Ops.PERMUTE, Ops.FLIP})  # read at another place than its neighbours


def measure(value: UOp) -> GraphSize:
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


def _measured(node: UOp, sources: Sequence[UOp]) -> GraphSize:
    if not sources:
        return _LEAF
    inner = [_measures[s] for s in sources]
    if node.op in GroupOp.Movement:
        return inner[0]
    depth = 1 + max(m.depth for m in inner)
    if node.op is Ops.REDUCE or node.op is Ops.CONTIGUOUS:
        return GraphSize(depth, 0, 1)
    # Operands read at the same place share their work within a kernel; moved ones are computed again.
    moved = sum(m.cost for s, m in zip(sources, inner, strict=True) if _is_moved(s))
    here = max((m.cost for s, m in zip(sources, inner, strict=True) if not _is_moved(s)), default=0)
    return GraphSize(depth, 1 + max(m.nesting for m in inner), min(1 + here + moved, 1 << 30))


def _is_moved(value: UOp) -> bool:
    while value.op in GroupOp.Movement:
        if value.op in _MOVED:
            return True
        value = value.src[0]
    return False
