"""conformance.backend.lazy.layout: read and write agree with as_strided of torch CPU for any geometry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from conformance.backend.lazy import layout
from conformance.backend.runtime import memory, scheduler

LENGTH = 60


def flat_value(values: torch.Tensor) -> UOp:
    """Return a flat int32 value that holds a CPU tensor."""
    return memory.from_host(memoryview(values.numpy()), dtypes.int32, "CPU")


def host(value: UOp) -> torch.Tensor:
    """Return a value's elements as a flat CPU tensor."""
    if 0 in value.shape:
        return torch.empty(0, dtype=torch.int32)
    (done,), _ = scheduler.realize([value.reshape((-1,))], "CPU")
    return torch.from_numpy(np.frombuffer(memory.to_host(done), dtype=np.int32).copy())


@st.composite
def geometries(draw: st.DrawFn, overlapping: bool = True) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Draw (size, stride, offset) inside LENGTH elements: zero, unit, large, overlapping and non-divisible strides."""
    dims = draw(st.integers(0, 4))
    size, stride, reach = [], [], 0
    for _ in range(dims):
        n = draw(st.integers(0, 4))
        room = (LENGTH - 1 - reach) // max(n - 1, 1)
        s = draw(st.integers(0 if overlapping else 1, max(min(room, 17), 0 if overlapping else 1)))
        if n > 1 and reach + (n - 1) * s >= LENGTH:
            n = 1
        size.append(n)
        stride.append(s)
        reach += max(n - 1, 0) * s
    return tuple(size), tuple(stride), draw(st.integers(0, LENGTH - 1 - reach))


class TestRead:
    """layout.read."""

    @settings(max_examples=60)
    @given(geometries())
    def test_agrees_with_as_strided(self, geometry: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
        """Any strides are read correctly: overlapping, expanded, not divisible."""
        memory = torch.arange(LENGTH, dtype=torch.int32)
        size, stride, offset = geometry
        value = layout.read(flat_value(memory), size, stride, offset)
        assert value.shape == size
        assert host(value).tolist() == memory.as_strided(size, stride, offset).reshape(-1).tolist()

    def test_nested_layouts_need_no_index(self) -> None:
        """A layout whose extents nest is read by movement ops only, even if strides do not divide."""
        value = layout.read(UOp.new_buffer("CPU", LENGTH, dtypes.int32), (3, 2, 2), (17, 5, 2), 1)
        assert not any(u.op.name in ("ARANGE", "RANGE", "CMPLT", "REDUCE") for u in value.toposort())


class TestWrite:
    """layout.write."""

    @settings(max_examples=60)
    @given(geometries(overlapping=False))
    def test_agrees_with_as_strided(self, geometry: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
        """The view's elements are assigned in row-major order, and no element outside the view changes."""
        memory = -torch.arange(1, LENGTH + 1, dtype=torch.int32)
        size, stride, offset = geometry
        new = torch.arange(int(np.prod(size, dtype=int)), dtype=torch.int32)
        expected = memory.clone()
        for position, number in zip(layout.positions(size, stride, offset).reshape(-1), new.tolist(), strict=True):
            expected[position] = number
        value = flat_value(new).reshape(size) if new.numel() else UOp.const(0, dtypes.int32).expand(size)
        written = layout.write(flat_value(memory), size, stride, offset, value, table)
        assert host(written).tolist() == expected.tolist()

    @pytest.mark.parametrize(("size", "stride"), [((2, 3), (3, 2)), ((2, 4), (3, 2)), ((2, 3, 2), (3, 2, 12))])
    def test_interleaved_layouts_need_no_table(self, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        """Interleaved rows are written row by row. An index formerly made two kernels of each write."""
        memory, new = torch.arange(LENGTH, dtype=torch.int32), torch.full(size, -1, dtype=torch.int32)
        assert not layout.plan(size, stride).nested
        written = layout.write(flat_value(memory), size, stride, 2, flat_value(new.reshape(-1)).reshape(size), refused)
        assert not any(u.op.name == "REDUCE" for u in layout.read(written, size, stride, 2).toposort())
        memory.as_strided(size, stride, 2).copy_(new)
        assert host(written).tolist() == memory.tolist()

    def test_elements_that_share_memory_are_written_in_order(self) -> None:
        """For overlapping windows, the last write in row-major order remains, although each window is nested."""
        new = flat_value(torch.arange(6, dtype=torch.int32)).reshape((3, 2))
        written = layout.write(flat_value(torch.full((5,), -1, dtype=torch.int32)), (3, 2), (1, 1), 0, new, table)
        assert host(written).tolist() == [0, 2, 4, 5, -1]


def refused(positions: np.ndarray) -> UOp:
    """A table function that fails the test."""
    raise AssertionError("a table was asked for")


def table(positions: np.ndarray) -> UOp:
    """Return a host array of positions as a value."""
    return memory.from_host(memoryview(positions), dtypes.int64, "CPU")


class TestPlan:
    """layout.plan and the predicates of geometry."""

    @pytest.mark.parametrize(
        ("size", "stride", "nested", "dense"),
        [
            ((2, 3), (3, 1), True, True),
            ((2, 3), (1, 2), True, True),
            ((2, 3), (7, 2), True, False),
            ((2, 3), (3, 2), False, False),
            ((3, 3), (1, 1), False, False),
            ((2, 3), (0, 1), True, True),
            ((), (), True, True),
            ((1, 4), (99, 1), True, True),
        ],
    )
    def test_classifies(self, size: tuple[int, ...], stride: tuple[int, ...], nested: bool, dense: bool) -> None:
        """nested: extents fit inside the next larger stride; dense: and leave no gap."""
        plan = layout.plan(size, stride)
        assert (plan.nested, plan.dense) == (nested, dense)

    def test_covers_only_without_gap_offset_or_repeat(self) -> None:
        """covers() is true exactly for permutations of the whole storage."""
        assert layout.covers((2, 3), (1, 2), 0, 6)
        assert not layout.covers((2, 3), (1, 2), 0, 7)
        assert not layout.covers((2, 3), (1, 2), 1, 7)
        assert not layout.covers((2, 3), (0, 1), 0, 6)

    def test_contiguous_strides_of_empty_sizes(self) -> None:
        """A dimension of size 0 counts as 1, as in torch."""
        assert layout.contiguous_strides((2, 0, 3)) == torch.empty(2, 0, 3).stride()
