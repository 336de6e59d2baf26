"""Few writes into many positions: only the written pages are computed, and all other elements are unchanged.

Defines `by_pages`. A table of all positions, an int32 each, is four times a tensor of bytes, and is nearly empty. A
table of pages and the written pages are small. The extra memory is of the order of the square root of positions times
writes.
The module depends neither on operators nor on the way in which writes to one position combine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context
from ..lazy.layout import elements

PAGED = 1 << 22  # least number of positions for which pages are worth two more kernels
SMALLEST = 8  # positions on a page; where pages would be smaller, a table of all positions is better


def by_pages(ctx: Context, base: UOp, place: np.ndarray, write: Callable[[UOp, np.ndarray], UOp]) -> UOp:
    """`write(base, place)`, which changes `base` (n, ...) at most at `place`, int64 in [0, n)."""
    count = int(base.shape[0])
    page = 1 << (math.isqrt(count // max(len(place), 1)).bit_length() - 1) if len(place) <= count else 1
    if count < PAGED or page < SMALLEST or not len(place):
        return write(base, place)
    pages = -(-count // page)
    written, leaf = np.unique(place // page, return_inverse=True)
    # Rounded up to a power of two, so that another index needs the same kernels; the added pages are read and unused.
    leaves = np.resize(written, 1 << (len(written) - 1).bit_length())
    inside = np.minimum(leaves[:, None] * page + np.arange(page), count - 1).reshape(-1)
    old = elements(base, ctx.data(inside))
    new = write(old, leaf.reshape(-1) * page + place % page).contiguous()
    leaf_of = np.full(pages, -1, dtype=np.int32)
    leaf_of[written] = np.arange(len(written), dtype=np.int32)
    of = ctx.data(leaf_of).reshape((pages, 1)).expand((pages, page)).reshape((pages * page,)).shrink(((0, count),))
    column = UOp.arange(page).reshape((1, page)).expand((pages, page)).reshape((pages * page,)).shrink(((0, count),))
    none = of < 0
    changed = elements(new, none.where(0, of) * page + column)
    return none.reshape((count,) + (1,) * (base.ndim - 1)).expand(base.shape).where(base, changed)
