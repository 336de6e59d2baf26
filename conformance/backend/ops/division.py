"""Divisions that round, remainders, common divisors and powers.

A remainder is only right if the product of divisor and quotient is exact. Integers give that. For float32 the
dividend's 24 bits are shifted by the difference of the exponents, 40 bits at a time. For float64 the power of two of
that difference is computed modulo the divisor's 53 bits, by repeated squaring.
Integer division by zero is undefined in the kernel's language and raises on the CPU, so a divisor that may contain a 0
is read on the host.
"""

from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..dispatch.registry import Context, Declined, operand, pointwise, rounded_operand, value
from ..lazy.dtypes import opmath
from ..runtime import expressions, memory, recording, scheduler
from . import elementary as e
from . import order
from .arithmetic import INF, NAN, absolute, bits_dtype, copy_sign, divide, scale, subtract

_SQUARINGS = 7  # the difference of two exponents has 11 bits; 2 to the power of the first 4 is a start


def _wide_rest(a: UOp, b: UOp) -> UOp:
    """a mod b for finite a >= 0 and b > 0 in float64; exact."""
    (whole, high), (divisor, low) = _wide_parts(a), _wide_parts(b)
    above = a < b
    shift = above.where(0, high - low)
    power = (shift >> _SQUARINGS).const_like(1).alu(Ops.SHL, shift >> _SQUARINGS)
    for bit in reversed(range(_SQUARINGS)):
        power = _product_modulo(power, power, divisor)
        doubled = power * 2
        doubled = (doubled < divisor).where(doubled, doubled - divisor)
        power = (shift & (1 << bit)).ne(0).where(doubled, power)
    rest = _product_modulo(whole, power, divisor)
    return above.where(a, scale(rest.cast(dtypes.float64), low - (1023 + 52)))


def _wide_parts(x: UOp) -> tuple[UOp, UOp]:
    """(w, k) in int64 with x = w * 2**(k - 1075) for finite x >= 0 in float64."""
    bits = x.bitcast(dtypes.int64)
    normal = (bits >> 52) > 0
    return (bits & ((1 << 52) - 1)) + normal.where(1 << 52, 0), normal.where(bits >> 52, 1)


def _product_modulo(a: UOp, b: UOp, divisor: UOp) -> UOp:
    """a * b mod the divisor in int64, for a, b >= 0 whose quotient a * b / divisor and whose factors are below 2**53.

    The quotient of the rounded floats is off by less than 3. The product may wrap, the remainder does not.
    """
    floats = [x.cast(dtypes.float64) for x in (a, b, divisor)]
    rest = a * b - divide(floats[0] * floats[1], floats[2]).cast(dtypes.int64) * divisor
    twice = divisor * 2
    rest = (rest < 0).where(rest + twice, rest)
    rest = (rest < twice).where(rest, rest - twice)
    return (rest < divisor).where(rest, rest - divisor)


def _parts(x: UOp) -> tuple[UOp, UOp]:
    """(the first 24 bits of a double, its exponent field), in uint64, for x >= 0 that is not subnormal.

    Every float32 is such a double, with no further bits.
    """
    bits = x.bitcast(dtypes.uint64)
    return ((bits >> 29) & 0x7FFFFF) | 0x800000, bits >> 52


_SHIFT = 40  # 24 bits shifted by 40 fill 64 bits
_LONGEST = 277  # bits of the quotient of the largest float32 by the smallest subnormal one


def _narrow_rest(a: UOp, b: UOp) -> UOp:
    """a mod b for finite float32 numbers a >= 0 and b > 0, stored as float64; exact."""
    (whole, high), (divisor, low) = _parts(a), _parts(b)
    above = a < b
    left, rest = above.where(0, high - above.where(high, low)), whole % divisor
    for _ in range(-(-_LONGEST // _SHIFT)):
        step = (left < _SHIFT).where(left, _SHIFT)
        rest, left = rest.alu(Ops.SHL, step) % divisor, left - step
    # unit = 2.0 ** (low - 1023 - 23), the value of the last of the 24 bits.
    unit = ((low - 23) << 52).bitcast(dtypes.float64)
    return above.where(a, rest.cast(dtypes.float64) * unit)


def float_fmod(a: UOp, b: UOp, narrow: bool = False) -> UOp:
    """a - trunc(a/b) * b in float64, with the sign of a; exact. `narrow` numbers are float32 values."""
    size = absolute(b)
    usable, dividend = (b.eq(0) | b.ne(b)).where(1.0, size), absolute(a)
    rest = (_narrow_rest if narrow else _wide_rest)((dividend < INF).where(dividend, 0.0), usable)
    rest = size.eq(INF).where(a, copy_sign(rest, a))
    return (b.eq(0) | absolute(a).eq(INF) | a.ne(a) | b.ne(b)).where(NAN, rest)


def _float_rest(a: UOp, b: UOp) -> tuple[UOp, UOp, UOp]:
    """(the remainder of a by b with the sign of a, a, b), all in float64."""
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    return float_fmod(x, y, narrow=a.dtype is not dtypes.float64), x, y


def _checked(divisor: UOp) -> UOp:
    """The divisor. Raises the CPU's error if an element is 0; elements are read unless tinygrad's bounds exclude 0.

    In a graph that torch.compile replays elements cannot be read: there 1 replaces 0.
    """
    if divisor.vmin > 0 or divisor.vmax < 0:
        return divisor
    if expressions.constant_of(divisor) == 0:
        raise RuntimeError("ZeroDivisionError")
    if recording.is_open() or divisor.device is None or 0 in divisor.shape:
        return divisor.eq(0).where(1, divisor)
    (buffer,), _ = scheduler.realize([divisor.eq(0).max().reshape((1,))], divisor.device)  # type: ignore[arg-type]
    if any(memory.to_host(buffer).tobytes()):
        raise RuntimeError("ZeroDivisionError")
    return divisor


def divide_integers(op: Ops, a: UOp, b: UOp) -> UOp:
    """Integer division or remainder by a divisor without zeros; for the smallest integer and -1 it wraps.

    In a gap of an out= tensor, or in a padding, a divisor reads as 0, and the quotient there is not used.
    """
    usable = b if b.vmin > 0 or b.vmax < 0 else b.eq(0).where(1, b)
    if dtypes.is_unsigned(a.dtype):
        return a.alu(op, usable)
    minus_one = b.eq(-1)
    result = a.alu(op, minus_one.where(1, usable))
    return minus_one.where(a * -1 if op in (Ops.CDIV, Ops.FLOORDIV) else 0, result)


def _integer(op: Ops, a: UOp, b: UOp) -> UOp:
    return divide_integers(op, a, _checked(b))


def fmod(a: UOp, b: UOp) -> UOp:
    """The remainder with the dividend's sign."""
    if not dtypes.is_float(a.dtype):
        return _integer(Ops.CMOD, a, b)
    return _float_rest(a, b)[0].cast(a.dtype)


def remainder(a: UOp, b: UOp) -> UOp:
    """The remainder with the divisor's sign."""
    if not dtypes.is_float(a.dtype):
        return _integer(Ops.FLOORMOD, a, b)
    rest, _, y = _float_rest(a, b)
    return (rest.ne(0) & (rest < 0).ne(y < 0)).where(rest + y, rest).cast(a.dtype)


def floor_divide(a: UOp, b: UOp) -> UOp:
    """Largest integer not above a / b, computed from the remainder (c10::div_floor_floating)."""
    if not dtypes.is_float(a.dtype):
        return _integer(Ops.FLOORDIV, a, b)
    rest, x, y = _float_rest(a, b)
    quotient = divide(subtract(x, rest), y)
    quotient = (rest.ne(0) & (rest < 0).ne(y < 0)).where(subtract(quotient, 1.0), quotient)
    whole = quotient.floor()
    whole = (subtract(quotient, whole) > 0.5).where(whole + 1.0, whole)
    result = quotient.eq(0).where(copy_sign(x.const_like(0.0), divide(x, y)), whole)
    return y.eq(0).where(divide(x, y), result).cast(a.dtype)


def trunc_divide(a: UOp, b: UOp) -> UOp:
    """a / b rounded towards 0."""
    return divide(a, b).trunc() if dtypes.is_float(a.dtype) else _integer(Ops.CDIV, a, b)


ROUNDED = {None: divide, "trunc": trunc_divide, "floor": floor_divide}

pointwise(
    {
        "div.Tensor_mode": lambda a, b, rounding_mode=None: ROUNDED[rounding_mode](a, b),
        "floor_divide": floor_divide,
        "remainder.Tensor": remainder,
        "remainder.Scalar_Tensor": remainder,
        "fmod.Tensor": fmod,
    }
)


def gcd(a: UOp, b: UOp) -> UOp:
    """Greatest common divisor by Euclid's algorithm, with as many steps as the width can need (Lame's bound).

    For 32 bits or more these divisions take seconds to compile, so the call is declined and runs on the CPU.
    """
    if a.dtype.itemsize > 2:
        raise Declined
    a, b = ((x if dtypes.is_unsigned(x.dtype) else (x < 0).where(x * -1, x)) for x in (a, b))
    for _ in range(int(a.dtype.bitsize * 1.4405) + 2):
        done = b.eq(0)
        a, b = done.where(a, b), done.where(0, a.alu(Ops.CMOD, done.where(1, b)))
    return a


def lcm(a: UOp, b: UOp) -> UOp:
    """Least common multiple, 0 if either is 0; as in C, the product is an int and abs() comes before it wraps."""
    divisor = gcd(a, b)
    quotient = a.alu(Ops.CDIV, divisor.eq(0).where(1, divisor))
    if dtypes.is_unsigned(a.dtype):
        return quotient * b
    multiple = quotient.cast(dtypes.int32) * b.cast(dtypes.int32)
    return (multiple < 0).where(multiple * -1, multiple).cast(a.dtype)


def _multiplied(base: UOp, exponent: int) -> UOp:
    """Power with a known exponent >= 0, by squaring; integers wrap."""
    result = base.const_like(1)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def integer_power(base: UOp, exponent: UOp) -> UOp:
    """Integer base ** exponent, wrapping; 0 for negative exponents unless base is 1 or -1 (ATen/native/Pow.h, powi)."""
    if base.dtype is dtypes.bool:
        return base | exponent.logical_not()
    if base.device is None:  # tinygrad folds integer constants without wrapping
        raise Declined
    # Squares alternate between signed and unsigned: tinygrad bounds a product by its factors, and the bounds of a chain
    # of squares have more digits than memory can hold. A reinterpretation resets the bounds.
    kind = order.unsigned(base.dtype)
    signs = (kind, bits_dtype(base.dtype))
    square = base.bitcast(kind)
    result = square.const_like(1)
    for bit in range(base.dtype.bitsize - (0 if dtypes.is_unsigned(base.dtype) else 1)):
        result = ((exponent >> bit) & 1).ne(0).where(result * square.bitcast(kind), result)
        square = (square * square).bitcast(signs[(bit + 1) % 2])
    result = result.bitcast(base.dtype)
    if dtypes.is_unsigned(base.dtype):
        return result
    odd = (exponent & 1).ne(0)
    small = base.eq(1).where(1, base.eq(-1).where(odd.where(base.const_like(-1), 1), 0))
    return (exponent < 0).where(small, result)


# Exponents for which the CPU does not call pow (pow_tensor_scalar_optimized_kernel).
SHORT = {
    1.0: lambda x: x,
    0.5: lambda x: x.sqrt(),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: divide(x.const_like(1.0), x.sqrt()),
    -1.0: lambda x: divide(x.const_like(1.0), x),
    -2.0: lambda x: divide(x.const_like(1.0), x * x),
}


@value("pow.Tensor_Scalar", deferrable=True)
def pow_scalar(ctx: Context, x: UOp, exponent: float) -> UOp:
    """x ** exponent for an exponent that is a number."""
    dtype = opmath(ctx.out.computed)
    x = operand(ctx, 0, x, dtype)
    if not dtypes.is_float(dtype):
        if exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return integer_power(x, x.const_like(int(exponent))) if dtype is dtypes.bool else _multiplied(x, int(exponent))
    short = SHORT.get(float(exponent))
    # The CPU has no shortcut for roots of float16: there pow(-inf, 0.5) is inf, and pow(-0.0, 0.5) is 0.0.
    if short is not None and not (ctx.out.computed is dtypes.float16 and abs(exponent) == 0.5):
        return short(x)
    return e.power(x, rounded_operand(ctx, 1, float(exponent), dtype))


def power(base: UOp, exponent: UOp) -> UOp:
    """base ** exponent in any dtype."""
    return e.power(base, exponent) if dtypes.is_float(base.dtype) else integer_power(base, exponent)


pointwise({"pow.Tensor_Tensor": power, "pow.Scalar": power, "gcd": gcd, "lcm": lcm})
