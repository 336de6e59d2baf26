"""The order of elements as integers: maxima, minima, sorting and searching with nan in its place.

Defines `key` and `unkey` (a value as integers that compare as torch orders the elements), and `extreme` (the largest or
smallest along dimensions, with its first index where asked).

The key insight: the bits of a float, with the negative half mirrored, order as the floats do, and nan can be put at
either end. So one integer reduction propagates nan, and a key with its position packed below it finds the first index.
Must not know torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from .elementary import bits_dtype


def key(x: UOp, nan_last: bool = True) -> UOp:
    """Integers that order as the elements do: nan above (or below) everything, -0 equal to 0.

    float16 and bfloat16 go by their float32, which is exact; booleans by a byte; integers are their own keys.
    """
    if x.dtype is dtypes.bool:
        return x.cast(dtypes.uint8)
    if not dtypes.is_float(x.dtype):
        return x
    if x.dtype.itemsize == 2:
        x = x.cast(dtypes.float32)
    kind = bits_dtype(x.dtype)
    bits = x.eq(0).where(0.0, x).bitcast(kind)
    ordered = (bits < 0).where(bits ^ kind.max, bits)
    return x.ne(x).where(kind.max if nan_last else -kind.max - 1, ordered)


def unkey(ordered: UOp, dtype: DType) -> UOp:
    """The elements of `dtype` whose keys these are; nan for the keys at the ends."""
    if dtype is dtypes.bool:
        return ordered.ne(0)
    if not dtypes.is_float(dtype):
        return ordered.cast(dtype)
    wide = dtypes.float32 if dtype.itemsize == 2 else dtype
    kind = bits_dtype(wide)
    return (ordered < 0).where(ordered ^ kind.max, ordered).bitcast(wide).cast(dtype)


def positions(shape: Sequence[Any], dim: int) -> UOp:
    """Each element's int64 position along `dim`, as a value that broadcasts to `shape`."""
    along = UOp.arange(shape[dim]).cast(dtypes.int64)
    return along.reshape(tuple(n if i == dim else 1 for i, n in enumerate(shape)))


def reduce_max(ordered: UOp, dims: Sequence[int], largest: bool = True) -> UOp:
    """The largest (or smallest) key along `dims`, which are kept with size 1."""
    if largest:
        return ordered.max(tuple(dims), keepdim=True)
    return (~(~ordered).max(tuple(dims), keepdim=True)).cast(ordered.dtype)


def extreme(x: UOp, dims: Sequence[int], largest: bool) -> UOp:
    """The largest or smallest element along `dims`, kept with size 1; nan where there is one (at::amax, at::amin)."""
    return unkey(reduce_max(key(x, nan_last=largest), dims, largest), x.dtype)


def first_extreme(x: UOp, dim: int, largest: bool) -> tuple[UOp, UOp]:
    """(values, int64 indices) of the first largest or smallest element along `dim`, which is kept with size 1.

    Up to 32 bits the key and the position fit into one int64, so one reduction finds both.
    """
    ordered = key(x, nan_last=largest)
    size, place = x.shape[dim], positions(x.shape, dim)
    if ordered.dtype.itemsize <= 4:
        late = place if not largest else (size - 1) - place
        best = reduce_max(ordered.cast(dtypes.int64) * (1 << 32) + late, (dim,), largest)
        late = best & 0xFFFFFFFF
        return unkey((best >> 32).cast(ordered.dtype), x.dtype), late if not largest else (size - 1) - late
    best = reduce_max(ordered, (dim,), largest)
    index = ordered.eq(best).where(place, size)
    return unkey(best, x.dtype), reduce_max(index, (dim,), largest=False)
