"""Tensors made from numbers: arange, linspace, logspace, eye, each value a formula of its position.

These operators have no tensor argument that names the device, and torch calls most of them through their out= overload.
So each is a formula of the position, written into `out`, which also gives the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import fallback
from ..dispatch.metadata import specs
from ..dispatch.registry import ROWS
from ..dispatch.schema_kernels import FunctionalOverload, find
from ..dispatch.tensors import assign, check_writable, constant, fill
from ..dispatch.views import empty
from ..lazy.dtypes import COMPUTED, TORCH, opmath
from ..runtime import memory
from ..runtime.stats import STATS
from ..runtime.warn import warn
from . import elementary as e

Formula = Callable[..., UOp]


def into_out(name: str, formula: Formula, counts: bool = False) -> Callable[..., Any]:
    """Kernel of an out= overload: the meta kernel checks and sizes, `formula(size, dtype, *args)` gives the values.

    With `counts`, the CPU checks only the number of elements of `out` (RangeFactories.cpp) and fills an `out` of
    another shape in the order of its indices. The meta kernels would resize it and warn, so they get an empty `out`.
    """
    op = find(name)
    assert op is not None
    text = str(op)

    def kernel(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if out.dtype not in COMPUTED:
            return fallback.on_cpu(op, args, {**kwargs, "out": out})
        STATS.native[text] += 1
        _, (sized,) = specs(op, args, {**kwargs, "out": empty((0,), dtype=out.dtype, device=out.device)})
        if out.numel() != math.prod(sized.size) if counts else tuple(out.shape) != sized.size:
            if out.numel() and formula is arange and not name.startswith("range"):
                warn(_RESIZED.format(out.numel(), list(out.shape), *sized.size))
            torch.ops.aten.resize_.default(out, sized.size)
        if out.numel():
            check_writable(out)
            values = formula(sized.size, COMPUTED[out.dtype], *args, **kwargs, index=out.device.index or 0)
            assign(out, values.reshape(tuple(out.shape)))
        return out

    return kernel


# The warning of the CPU's arange.
_RESIZED = (
    "The number of elements in the out tensor of shape {1} is {0} which does not match the computed number of elements "
    "{2}. Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor of shape "
    "({2},)."
)


def range_out(start: Any, end: Any, *, out: torch.Tensor) -> torch.Tensor:
    """aten::range.out_, which torch sends to the CPU's kernel on any device."""
    return torch.ops.aten.range.out(start, end, 1, out=out)


def _wide(dtype: DType) -> DType:
    return dtypes.int64 if dtypes.is_int(dtype) else dtypes.float64


def arange(
    size: tuple[int, ...], dtype: DType, start: float, end: float | None = None, step: float = 1, index: int = 0
) -> UOp:
    """start + i * step, computed as on the CPU: in int64 for integers, in double for floats."""
    if end is None:
        start = 0
    wide = _wide(dtype)
    return UOp.arange(size[0]).cast(wide) * constant(step, wide) + constant(start, wide)


def linspace(
    size: tuple[int, ...], dtype: DType, start: float, end: float, steps: int, wide: DType | None = None, index: int = 0
) -> UOp:
    """Even steps, counted from the nearer end as on the CPU (RangeFactoriesKernel.cpp), so that both ends are exact."""
    if steps == 1:
        return constant(start, dtype).expand(size)
    wide = wide or (dtypes.float64 if dtypes.is_int(dtype) else opmath(dtype))
    if dtypes.is_int(dtype):
        start, end = int(start), int(end)
    step = constant((end - start) / (steps - 1), wide)
    i = UOp.arange(steps).cast(wide)
    rising = constant(start, wide) + i * step
    falling = constant(end, wide) - (constant(steps - 1, wide) - i) * step
    return (UOp.arange(steps) < steps // 2).where(rising, falling)


def logspace(
    size: tuple[int, ...], dtype: DType, start: float, end: float, steps: int, base: float = 10.0, index: int = 0
) -> UOp:
    """base to the power of even steps; the CPU computes integers, because 10.0 ** 2 rounded down would give 99."""
    if not dtypes.is_float(dtype):
        whole = torch.logspace(start, end, steps, base, dtype=TORCH[dtype], device="cpu")
        return memory.from_host(whole.numpy(), dtype, memory.device_name(index))
    if steps == 1:
        return constant(math.pow(base, start), dtype).expand(size)
    wide = dtypes.float64
    return e.power(constant(base, wide), linspace(size, dtypes.float64, start, end, steps, wide))


def eye(size: tuple[int, ...], dtype: DType, *_: Any, index: int = 0) -> UOp:
    """Ones on the diagonal."""
    rows, columns = size
    return UOp.arange(rows).reshape((rows, 1)).eq(UOp.arange(columns).reshape((1, columns)))


def zeros_to_be(size: Sequence[int], **kwargs: Any) -> torch.Tensor:
    """aten::_efficientzerotensor: zeros, which need no memory on a lazy device."""
    return torch.zeros(size, **kwargs)


_FILL = torch.ops.aten.fill_.Scalar
_FILL_NAME = str(_FILL)


@functools.cache
def _fill_by_schema() -> Callable[..., Any]:
    functional = torch.ops.aten.fill.Scalar
    return FunctionalOverload(_FILL, functional, ROWS["fill.Scalar"]).kernel


def fill_(self: torch.Tensor, number: Any) -> torch.Tensor:
    """aten::fill_.Scalar, the most frequent write: it reads nothing, and its metadata are the tensor's own."""
    dtype, kind = self.dtype, type(number)
    if kind is bool or kind is int:
        plain = dtype is torch.bool or (dtype in COMPUTED and 0 <= number <= 127)
        plain = plain or (dtype in _EXACT and _EXACT[dtype][0] <= number <= _EXACT[dtype][1])
    else:
        plain = kind is float and dtype in _FLOATS and (abs(number) <= 65504 or number != number)
    if not plain:
        # Convert, or raise, as the CPU does; the CPU does not raise for an empty tensor.
        converted = torch.empty(min(self.numel(), 2), dtype=dtype, device="cpu").fill_(number)
        number = converted[0].item() if len(converted) else 0
    if dtype not in COMPUTED or not self.numel():
        return _fill_by_schema()(self, number)
    fill(self, number)
    STATS.native[_FILL_NAME] += 1
    return self


def scalar_tensor(
    number: Any, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """aten::scalar_tensor, the right side of ``a[i] = 2``: torch's own form allocates memory, then fills it."""
    return fill_(empty((), dtype=dtype or torch.get_default_dtype(), device=device), number)


_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_EXACT = {d: (torch.iinfo(d).min, torch.iinfo(d).max) for d in (torch.int8, torch.int16, torch.int32, torch.int64)}
_EXACT |= dict.fromkeys((torch.float64, torch.float32), (-(1 << 24), 1 << 24))

KERNELS: dict[str, Callable[..., Any]] = {
    "_efficientzerotensor": zeros_to_be,
    "fill_.Scalar": fill_,
    "scalar_tensor": scalar_tensor,
    "arange.out": into_out("arange.out", arange, counts=True),
    "arange.start_out": into_out("arange.start_out", arange, counts=True),
    "range.out": into_out("range.out", arange, counts=True),
    "range.out_": range_out,
    "linspace.out": into_out("linspace.out", linspace, counts=True),
    "logspace.out": into_out("logspace.out", logspace, counts=True),
    "eye.out": into_out("eye.out", eye),
    "eye.m_out": into_out("eye.m_out", eye),
}
