"""Sums and products of two float64 without rounding error: the result and its error.

Defines `two_sum`, `two_product` and products of pairs, for functions whose result needs more than 53 bits.

The error of a rounded sum or product is itself a number of the dtype (T. J. Dekker, A floating-point technique for
extending the available precision, 1971). A pair is (nearest number, error) and has about 106 bits.
"""

from __future__ import annotations

from tinygrad.uop.ops import UOp

from .arithmetic import subtract

Pair = tuple[UOp, UOp]


def two_sum(a: UOp, b: UOp) -> Pair:
    """a + b for any two numbers (D. E. Knuth, The Art of Computer Programming, volume 2, 4.2.2)."""
    total = a + b
    b_part = subtract(total, a)
    return total, subtract(a, subtract(total, b_part)) + subtract(b, b_part)


def fast_two_sum(a: UOp, b: UOp) -> Pair:
    """a + b where a is 0, or not smaller than b in magnitude."""
    total = a + b
    return total, subtract(b, subtract(total, a))


def _halves(x: UOp) -> Pair:
    """Split a number into a sum of two numbers of 26 bits; valid up to 2**996."""
    scaled = x * 134217729.0
    high = subtract(scaled, subtract(scaled, x))
    return high, subtract(x, high)


def product_error(a: UOp, b: UOp, product: UOp) -> UOp:
    """a * b minus its rounded product."""
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    error = subtract(subtract(subtract(product, ah * bh), al * bh), ah * bl)
    return subtract(al * bl, error)


def two_product(a: UOp, b: UOp) -> Pair:
    """a * b as a pair."""
    product = a * b
    return product, product_error(a, b, product)


def multiply_pairs(a: Pair, b: Pair) -> Pair:
    """a * b of two pairs, correct to about 104 bits; the result is not normalized."""
    high, low = two_product(a[0], b[0])
    return high, low + (a[0] * b[1] + a[1] * b[0])
