"""Nodes of the fast constructors are identical to tinygrad's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from conformance.backend.tinygrad_patches import node_construction

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def fresh(shape: tuple[int, ...]) -> UOp:
    """Return a new value of this shape without other references."""
    return UOp.new_buffer("CPU", 24, dtypes.float32).shrink(((0, 1),)).reshape((1,) * len(shape)).expand(shape)


def same(value: UOp, op: Ops, arg: object) -> bool:
    """Return whether both constructors return one node with the same shape."""
    node = node_construction._mop(value, op, arg)
    shape = node.shape
    del node.__dict__[node_construction._SHAPE]
    return node is node_construction._make_moved(value, op, arg) and node.shape == shape


@given(SHAPES, st.randoms(use_true_random=False))
def test_movement_nodes_are_tinygrads_own(shape, random):
    """Reshape, expand, pad and shrink give the node and the shape of tinygrad's own constructor."""
    value = fresh(shape)
    assert same(value, Ops.RESHAPE, tuple(reversed(shape)))
    assert same(value, Ops.EXPAND, (random.randint(1, 3), random.randint(1, 3)))
    starts = [random.randrange(s) for s in shape]
    assert same(value, Ops.SHRINK, [(b, random.randint(1, s - b)) for b, s in zip(starts, shape, strict=True)])
    assert same(value, Ops.PAD, tuple((b, s + b + random.randint(0, 2)) for b, s in zip(starts, shape, strict=True)))


@pytest.mark.parametrize("op", sorted(node_construction._UNIFORM | node_construction._COMPARED, key=str))
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.bool])
def test_elementwise_nodes_are_tinygrads_own(op, dtype):
    """Two operands of one shape, or a scalar and a tensor on either side, give tinygrad's node."""
    a, b, scalar = fresh((2, 3)).cast(dtype), fresh((2, 3)).cast(dtype), UOp.const(1, dtype)
    for left, right in ((a, b), (a, scalar), (scalar, a), (scalar, scalar)):
        node = node_construction._alu(left, op, right)
        shape, dtype_ = node.shape, node.dtype
        node.__dict__.pop(node_construction._SHAPE)
        own = node_construction._make_alu(left, op, right)
        assert node is own and (own.shape, own.dtype) == (shape, dtype_)


def test_a_buffer_is_tinygrads_own():
    """A numbered buffer equals tinygrad's node, and an unnumbered one is new."""
    node = node_construction._new_buffer("CPU", 5, dtypes.int64, -12345)
    assert node.shape == (5,) and node is node_construction._make_buffer("CPU", 5, dtypes.int64, -12345)
    assert node_construction._new_buffer("CPU", 5, dtypes.int64) is not node_construction._new_buffer(
        "CPU", 5, dtypes.int64
    )


def test_where_is_tinygrads_own():
    """A tensor or a scalar as the condition and as each branch gives tinygrad's node."""
    yes, no = fresh((2, 3)), UOp.const(2.0, dtypes.float32)
    for operands in ((fresh((2, 3)).ne(0), yes, no), (no.ne(0), no, yes), (no.ne(0), no, no)):
        node = node_construction._alu(operands[0], Ops.WHERE, *operands[1:])
        shape, dtype = node.shape, node.dtype
        node.__dict__.pop(node_construction._SHAPE)
        own = node_construction._make_alu(operands[0], Ops.WHERE, *operands[1:])
        assert node is own and (own.shape, own.dtype) == (shape, dtype)


def test_what_tinygrad_refuses_is_refused_still():
    """A reshape to another count, a shrink past the end, and a pad that cuts raise an error when their shape is
    read."""
    value = fresh((2, 3))
    for op, arg in ((Ops.RESHAPE, (7,)), (Ops.SHRINK, [(0, 3), (0, 3)]), (Ops.PAD, ((1, 2), (0, 3)))):
        with pytest.raises(ValueError, match=r"bad reshape|invalid"):
            _ = node_construction._mop(value, op, arg).shape
