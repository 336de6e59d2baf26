"""Order of elements as integers: maxima, minima, sorting and searching with nan in its place.

Defines `key`, integers that compare as torch orders the elements, and its inverse `unkey`. Also defines `extreme`, the
largest or smallest element along dimensions, and `first_extreme`, which adds the first index.

The bits of a float, with the negative half mirrored, order as the floats do, and nan can be placed at either end. So
one integer reduction propagates nan, and a key with its position packed below it finds the first index.
The module does not use torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp


def unsigned(dtype: DType) -> DType:
    """Unsigned integer dtype of the same width."""
    return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[dtype.itemsize]


def _top_bit(dtype: DType) -> int:
    return 1 << (dtype.bitsize - 1)


def key(x: UOp, nan_last: bool = True, zeros_equal: bool = True) -> UOp:
    """Unsigned integers that order as the elements do: nan above (or below) all, -0 equal to 0 or one below it.

    float16 and bfloat16 are converted to float32, which is exact; booleans to a byte.
    """
    if x.dtype is dtypes.bool:
        return x.cast(dtypes.uint8)
    if dtypes.is_unsigned(x.dtype):
        return x
    if x.dtype in (dtypes.float16, dtypes.bfloat16):
        x = x.cast(dtypes.float32)
    kind = unsigned(x.dtype)
    top = _top_bit(kind)
    if not dtypes.is_float(x.dtype):
        return x.bitcast(kind) ^ top
    bits = (x.eq(0).where(0.0, x) if zeros_equal else x).bitcast(kind)
    ordered = (bits < top).where(bits | top, ~bits)
    return x.ne(x).where(kind.max if nan_last else 0, ordered)


def unsigned_zeros(signed: UOp, dtype: DType) -> UOp:
    """Convert keys of `dtype` that distinguish -0 from 0 to keys that do not."""
    top = _top_bit(signed.dtype)
    return signed.eq(top - 1).where(top, signed) if dtypes.is_float(dtype) else signed


def unkey(ordered: UOp, dtype: DType) -> UOp:
    """Elements of `dtype` from their keys; nan for the keys at the ends."""
    if dtype is dtypes.bool:
        return ordered.ne(0)
    if dtypes.is_unsigned(dtype):
        return ordered
    top = _top_bit(ordered.dtype)
    if not dtypes.is_float(dtype):
        return (ordered ^ top).bitcast(dtype)
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    return (ordered < top).where(~ordered, ordered ^ top).bitcast(wide).cast(dtype)


def packed(ordered: UOp, place: UOp) -> UOp:
    """Keys of at most 32 bits with a position of 32 bits below each."""
    return ordered.cast(dtypes.uint64) * (1 << 32) + place.cast(dtypes.uint64)


def unpacked(pairs: UOp, kind: DType) -> tuple[UOp, UOp]:
    """(keys of dtype `kind`, int64 positions)."""
    return (pairs >> 32).cast(kind), (pairs & 0xFFFFFFFF).cast(dtypes.int64)


def positions(shape: Sequence[Any], dim: int) -> UOp:
    """int64 position of each element along `dim`, as a value that broadcasts to `shape`."""
    along = UOp.arange(shape[dim]).cast(dtypes.int64)
    return along.reshape(tuple(n if i == dim else 1 for i, n in enumerate(shape)))


def reduce_max(ordered: UOp, dims: Sequence[int], largest: bool = True) -> UOp:
    """Largest (or smallest) key along `dims`, which stay with size 1."""
    if largest:
        return ordered.max(tuple(dims), keepdim=True)
    return ~(~ordered).max(tuple(dims), keepdim=True)


def extreme(x: UOp, dims: Sequence[int], largest: bool) -> UOp:
    """Largest or smallest element along `dims`, which stay with size 1; nan if there is one (at::amax, at::amin)."""
    return unkey(reduce_max(key(x, nan_last=largest, zeros_equal=False), dims, largest), x.dtype)


def first_extreme(x: UOp, dim: int, largest: bool) -> tuple[UOp, UOp]:
    """(values, int64 indices) of the first largest or smallest element along `dim`, which stays with size 1.

    For up to 32 bits the key, the position and a bit for a zero's sign fit into 64 bits, so one reduction finds all
    three. For longer numbers, a maximum of zeros is -0 only if all are -0, and a minimum of zeros is -0 if any is.
    """
    signed, ordered = (key(x, nan_last=largest, zeros_equal=equal) for equal in (False, True))
    size, place = x.shape[dim], positions(x.shape, dim)
    if ordered.dtype.itemsize <= 4:
        late = 2 * (place if not largest else (size - 1) - place) + signed.ne(ordered).cast(dtypes.int64)
        best, late = unpacked(reduce_max(packed(ordered, late), (dim,), largest), ordered.dtype)
        value, late = unkey(best - (late & 1).cast(best.dtype), x.dtype), late >> 1
        return value, late if not largest else (size - 1) - late
    extreme = reduce_max(signed, (dim,), largest)
    late = ordered.eq(unsigned_zeros(extreme, x.dtype)).where((size - 1) - place, 0).cast(dtypes.uint32)
    return unkey(extreme, x.dtype), (size - 1) - reduce_max(late, (dim,)).cast(dtypes.int64)
