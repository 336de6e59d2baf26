"""The inverse of an index: for each of `count` places, the number of the write that reaches it, or -1.

Defines `inverse`. The key insight: few writes into many places leave nearly all of a table of places empty, so the table
of a large tensor has two levels, pages and what is on the pages that are written at all: 8 * sqrt(count * writes) bytes
instead of 4 * count, which for 2^31 elements of one byte were four times the tensor.
Must not know operators.
"""

from __future__ import annotations

import math

import numpy as np
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context
from ..lazy.layout import elements

PAGED = 1 << 22  # places from which on a table may have pages
SMALLEST = 8  # places on a page; more writes than make smaller ones get a table of all places


def inverse(ctx: Context, count: int, place: np.ndarray, number: np.ndarray) -> UOp:
    """(count,) integers: number[i] at place[i], of equal places the last, and -1 everywhere else."""
    dtype = np.int32 if not len(number) or number.max() < 2**31 else np.int64
    page = 1 << (math.isqrt(count // max(len(place), 1)).bit_length() - 1) if 0 < len(place) < count else 1
    if count < PAGED or page < SMALLEST:
        table = np.full(count, -1, dtype=dtype)
        table[place] = number  # NumPy keeps the last of repeated indices
        return ctx.data(table)
    pages = -(-count // page)
    written, leaf = np.unique(place // page, return_inverse=True)
    # Rounded up to a power of two, so that another index needs the same kernels.
    leaves = np.full((1 << (len(written) - 1).bit_length(), page), -1, dtype=dtype)
    leaves[leaf, place % page] = number
    leaf_of = np.full(pages, -1, dtype=np.int32)
    leaf_of[written] = np.arange(len(written), dtype=np.int32)
    of = ctx.data(leaf_of).reshape((pages, 1)).expand((pages, page))
    column = UOp.arange(page).reshape((1, page)).expand((pages, page))
    none = of < 0
    found = elements(ctx.data(leaves.reshape(-1)), none.where(0, of) * page + column)
    return none.where(-1, found).reshape((pages * page,)).shrink(((0, count),))
