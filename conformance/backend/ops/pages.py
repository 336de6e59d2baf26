"""Few writes into many places: only the pages that are written are computed, and all others are as they were.

Defines `by_pages`. The key insight: a table of all places, an int32 for each, is four times a tensor of bytes, and is
empty nearly everywhere. A table of pages is small, and so are the pages that are written; what is kept beside the
tensor is of the order of the square root of places times writes.
Must not know operators, nor how writes to one place combine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context
from ..lazy.layout import elements

PAGED = 1 << 22  # places from which on pages are worth two kernels more
SMALLEST = 8  # places on a page; more writes than make smaller ones are better off with a table of all places


def by_pages(ctx: Context, base: UOp, place: np.ndarray, write: Callable[[UOp, np.ndarray], UOp]) -> UOp:
    """`write(base, place)`, which changes `base` (n, ...) at most at `place`, int64 in [0, n)."""
    count = int(base.shape[0])
    page = 1 << (math.isqrt(count // max(len(place), 1)).bit_length() - 1) if len(place) <= count else 1
    if count < PAGED or page < SMALLEST or not len(place):
        return write(base, place)
    pages = -(-count // page)
    written, leaf = np.unique(place // page, return_inverse=True)
    # Rounded up to a power of two, so that another index needs the same kernels; what is added is read and not used.
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
