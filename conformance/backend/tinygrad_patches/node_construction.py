"""Faster construction of tinygrad nodes: shape arguments of movement ops are cached, dtype and shape filled in.

Replaces `UOp._mop`, `alu`, `const` and `new_buffer`. They are not faulty, but take half of the time of building a
graph.

An operator's graph is a dozen nodes. tinygrad spends most of their construction on results that are known in advance:
it rewrites each shape argument symbolically, although it is a tuple of ints, and derives each dtype and shape through a
chain of cases. The replacements make exactly the same nodes as tinygrad, and call tinygrad's functions in all but the
plain cases.

This module must not depend on other parts of the backend.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import GroupOp, ParamArg, UOp, shape_to_shape_arg

from .patch import Patch

_SHAPE = Patch(
    "tinygrad.uop.ops:UOp._shape.nm", "Not changed: the attribute that keeps a node's shape.",
    "test_node_construction.py::test_movement_nodes_are_tinygrads_own",
).original  # fmt: skip
_SLOW = "Its answer is known beforehand in the plain cases, and takes most of the time of building a graph."
_MOVED = Patch("tinygrad.uop.ops:UOp._mop", _SLOW, "test_node_construction.py::test_movement_nodes_are_tinygrads_own")
_ALU = Patch("tinygrad.uop.ops:UOp.alu", _SLOW, "test_node_construction.py::test_elementwise_nodes_are_tinygrads_own")
_CONST = Patch("tinygrad.uop.ops:UOp.const", _SLOW, "test_node_construction.py::test_where_is_tinygrads_own")
_BUFFER = Patch("tinygrad.uop.ops:UOp.new_buffer", _SLOW, "test_node_construction.py::test_a_buffer_is_tinygrads_own")
_make_moved, _make_alu, _make_const, _make_buffer = (p.original for p in (_MOVED, _ALU, _CONST, _BUFFER))

_RESIZED = frozenset({Ops.PAD, Ops.SHRINK})
_COMPARED = frozenset({Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ})
# Elementwise ops with two operands of one dtype, which is also the result's.
_UNIFORM = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.AND, Ops.OR, Ops.XOR, Ops.SUB, Ops.FDIV}) & GroupOp.Broadcastable


@functools.lru_cache(maxsize=8192)
def _shape_arguments(*shapes: tuple[int, ...]) -> tuple[UOp, ...]:
    return UOp.sink(*[shape_to_shape_arg(s) for s in shapes]).simplify().src


def _plain(ints: Any) -> bool:
    return all(type(i) is int and i >= 0 for i in ints)


def _mop(self: UOp, op: Ops, arg: Any) -> UOp:
    """A movement op; sizes are ints in most graphs, and then its shape follows without any rewriting."""
    if op is Ops.RESHAPE and _plain(arg):
        shape = tuple(arg)
        if math.prod(self.shape) == math.prod(shape):
            return _with_shape(UOp(op, self.dtype, (self, *_shape_arguments(shape))), shape)
    elif op is Ops.EXPAND and arg and _plain(arg):
        shape = tuple(arg)
        return _with_shape(UOp(op, self.dtype, (self, *_shape_arguments(shape))), shape + self.shape)
    elif op in _RESIZED and arg:
        starts, sizes = (tuple(x) for x in zip(*arg, strict=True))
        if _plain(starts) and _plain(sizes) and _plain(self.shape) and len(sizes) == self.ndim:
            inner, outer = (sizes, self.shape) if op is Ops.SHRINK else (self.shape, sizes)
            if all(start + part <= whole for start, part, whole in zip(starts, inner, outer, strict=True)):
                return _with_shape(UOp(op, self.dtype, (self, *_shape_arguments(starts, sizes))), sizes)
    return _make_moved(self, op, arg)


def _alu(self: UOp, op: Ops, *src: UOp, **kwargs: Any) -> UOp:
    """An elementwise op; operands of one dtype and one shape, or scalars with tensors, need no inference."""
    operands = (self, *src)
    dtype = None if kwargs else _dtype(op, operands)
    if dtype is None:
        return _make_alu(self, op, *src, **kwargs)
    node = UOp(op, dtype, operands)
    if _SHAPE not in node.__dict__:
        shapes = {s for s in [x._shape for x in operands] if s}
        if len(shapes) < 2:
            node.__dict__[_SHAPE] = shapes.pop() if shapes else ()
    return node


def _dtype(op: Ops, operands: tuple[UOp, ...]) -> DType | None:
    """The dtype of an elementwise op in the plain cases."""
    dtype = operands[-1].dtype
    if len(operands) == 2 and operands[0].dtype == dtype:
        return dtype if op in _UNIFORM else dtypes.bool if op in _COMPARED else None
    if op is Ops.WHERE and operands[0].dtype is dtypes.bool and operands[1].dtype == dtype:
        return dtype
    return None


def _const(number: Any, dtype: DType | None = None) -> UOp:
    node = _make_const(number, dtype)
    if node.op is Ops.CONST:
        node.__dict__.setdefault(_SHAPE, ())
    return node


def _new_buffer(device: Any, size: int, dtype: DType, num: int | None = None) -> UOp:
    if type(size) is not int or dtype in dtypes.weaks:
        return _make_buffer(device, size, dtype, num)
    slot = next(UOp.unique_num) if num is None else num
    return _with_shape(UOp(Ops.BUFFER, dtype, _shape_arguments((size,)), ParamArg(slot, dtype, device=device)), (size,))


def _with_shape(node: UOp, shape: tuple[int, ...]) -> UOp:
    node.__dict__.setdefault(_SHAPE, shape)
    return node


_MOVED.apply(_mop)
_ALU.apply(_alu)
_CONST.apply(staticmethod(_const))
_BUFFER.apply(staticmethod(_new_buffer))
