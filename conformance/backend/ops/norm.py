"""Batch, layer and group normalization and their gradients: a mean, a variance and one elementwise pass.

All of them normalize over some axes of a reshaped input. They differ in that shape, in the broadcast of weight and
bias, and in the metadata of the statistics, which follow the CPU.
The module does not depend on strides in memory: the caller handles them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tinygrad.dtype import DType, dtypes
from tinygrad.uop.ops import UOp

from ..dispatch import deferral, fallback, metadata, overlap
from ..dispatch.metadata import MetaRejected, tensors_in
from ..dispatch.registry import Context, decomposition, value
from ..dispatch.tensors import Spec, assign, cast, check_writable, constant, make, read
from ..lazy.dtypes import COMPUTED, opmath
from ..runtime import torch_compat
from ..runtime.stats import STATS
from .arithmetic import divide
from .matmul import stored
from .reduction import total

aten = torch.ops.aten
Ints = Sequence[Any]


def mean_of(x: UOp, axes: Ints) -> UOp:
    """Mean over `axes`, which stay with size 1.

    Computed in float64: the CPU's running mean of equal numbers is that number. The residue of a rounded mean, divided
    by a standard deviation near zero, would be noise where the CPU has zeros.
    """
    count: Any = 1
    for a in axes:
        count *= x.shape[a]
    return divide(total(x, tuple(axes), dtypes.float64), float(max(count, 1))).cast(x.dtype)


def moments(x: UOp, axes: Ints) -> tuple[UOp, UOp]:
    """(mean, biased variance) over `axes`, which stay with size 1; in two passes, because one pass cancels digits."""
    mean = mean_of(x, axes)
    return mean, mean_of((x - mean).square(), axes)


def inverse_root(variance: UOp, eps: float) -> UOp:
    """1 / sqrt(variance + eps)."""
    return (variance + constant(eps, variance.dtype)).sqrt().reciprocal()


def optional(x: UOp | None, dtype: DType, shape: Ints) -> UOp | None:
    """A weight or bias in `dtype` and a shape that broadcasts."""
    return None if x is None else cast(x, dtype).reshape(tuple(shape))


def affine(x: UOp, weight: UOp | None, bias: UOp | None) -> UOp:
    """x * weight + bias, without the parameters that are None."""
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """float32 if 16-bit input is combined with float32 parameters, otherwise the input's (ATen's is_mixed_type)."""
    mixed = x.dtype.itemsize == 2 and any(p is not None and p.dtype == torch.float32 for p in parameters)
    return torch.float32 if mixed else x.dtype


def _native(
    op: Any, compute: Callable[..., Sequence[tuple[Spec, UOp]]], takes_empty: bool = False
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Kernel from a function that returns results together with their metadata."""
    name, is_batch = str(op), "batch_norm" in str(op)

    def kernel(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        if is_batch:
            _check_parameters(op, args)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(t.dtype not in COMPUTED for t in tensors) or not (tensors[0].numel() or takes_empty):
            return fallback.on_cpu(op, args, kwargs)
        index = metadata.device_index(args, kwargs)
        _, outs = metadata.specs(op, args, kwargs)
        STATS.native[name] += 1
        return tuple(make(spec, result, index) for spec, result in compute(outs[0], *args, **kwargs))

    return kernel


def _check_parameters(op: Any, args: Sequence[Any]) -> None:
    """Raise torch.batch_norm's error for parameters of the wrong length: torch CPU reads memory beyond their end."""
    inputs = {a.name: x for a, x in zip(op._schema.arguments, args, strict=False)}
    if inputs["input"].dim() < 2:
        return  # torch CPU refuses it
    channels = inputs["input"].shape[1]
    for name in ("weight", "bias", "running_mean", "running_var"):
        parameter = inputs.get(name)
        if parameter is not None and parameter.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {parameter.numel()}")
        if parameter is None and name.startswith("running") and not inputs.get("training", True):
            raise RuntimeError(f"{name} must be defined in evaluation mode")


def _read(x: torch.Tensor | None) -> UOp | None:
    return None if x is None else read(x)


def _batch_norm(
    out: Spec, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
    running_mean: torch.Tensor | None, running_var: torch.Tensor | None, training: bool, momentum: float, eps: float,
) -> Sequence[tuple[Spec, UOp]]:  # fmt: skip
    dtype = opmath(COMPUTED[x.dtype])
    channels = x.shape[1]
    shape = (1, channels, *[1] * (x.dim() - 2))
    axes = (0, *range(2, x.dim()))
    elements = cast(stored(read(x)), dtype)
    saved = Spec(statistics_dtype(x, weight, bias, running_mean, running_var), (channels,) if training else (0,), (1,))

    def rounded(v: UOp) -> UOp:
        return cast(cast(v, saved.computed), dtype)

    if training:
        count = x.numel() // channels
        mean = mean_of(elements, axes)
        # Measured rounding of torch 2.13's CPU kernels: each step for bfloat16, only the saved values for float16.
        step = rounded if saved.dtype is not torch.float16 else lambda v: v
        squares = step(total((elements - mean).square(), axes))
        variance = step(squares * (1.0 / count))
        for running, new in ((running_mean, step(mean)), (running_var, step(squares * (1.0 / max(count - 1, 1))))):
            if running is not None:
                check_writable(running)
                new = new.reshape((channels,)) * momentum
                assign(running, new + cast(read(running), dtype) * (1 - momentum) if momentum != 1 else new)
        mean = rounded(mean)
    else:
        mean, variance = (
            cast(read(r), dtype).reshape(shape) for r in (running_mean, running_var)  # type: ignore[arg-type]
        )  # fmt: skip
    inverse = inverse_root(variance, eps)
    inverse = rounded(inverse) if training else inverse
    result = affine(
        (elements - mean) * inverse, optional(_read(weight), dtype, shape), optional(_read(bias), dtype, shape)
    )
    return (_dense(x), result), (saved, mean.reshape((channels,))), (saved, inverse.reshape((channels,)))


def _no_stats(out: Spec, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return _batch_norm(out, x, weight, bias, None, None, training, momentum, eps)


def _with_update(out: Spec, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    reserve = (Spec(torch.uint8, (0,), (1,)), constant(0, COMPUTED[torch.uint8]))
    return *_batch_norm(out, x, weight, bias, mean, var, True, momentum, eps), reserve


def _into(functional: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Out= kernel of a functional one.

    Evaluation saves no statistics, so the out= tensors of the statistics keep their values. If an out overlaps an
    input, the CPU runs the call: it refuses some overlaps, and in others reads elements that it has written.
    """

    def kernel(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        targets = tuple(kwargs[n] for n in names)
        kwargs = {name: value for name, value in kwargs.items() if name not in names}
        if overlap.undecided(targets, tensors_in([*args, *kwargs.values()]), elementwise=False):
            raise MetaRejected("the written tensor overlaps itself or an input")
        for target, result in zip(targets, functional(*args, **kwargs), strict=True):
            if target is not targets[0] and not result.numel() and targets[0].numel():
                continue
            if target.shape != result.shape:
                target.resize_(result.shape)
            target.copy_(result)
        return targets

    return kernel


@value("native_batch_norm_backward", deferrable=True)
def batch_norm_backward(
    ctx: Context, grad: UOp, x: UOp, weight: UOp | None, running_mean: UOp | None, running_var: UOp | None,
    save_mean: UOp | None, save_inverse: UOp | None, train: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[UOp | None, ...]:  # fmt: skip
    """Gradients of the input, the weight and the bias."""
    dtype = opmath(x.dtype)
    grad, x = cast(stored(grad), dtype), cast(stored(x), dtype)
    shape, axes = (1, x.shape[1], *[1] * (x.ndim - 2)), (0, *range(2, x.ndim))
    mean, spread = (save_mean, save_inverse) if train else (running_mean, running_var)
    mean, spread = (cast(v, dtype).reshape(shape) for v in (mean, spread))  # type: ignore[arg-type]
    inverse = spread if train else inverse_root(spread, eps)
    summed = total(grad, axes)
    along = total(grad * (x - mean), axes) * inverse
    scale = affine(inverse, optional(weight, dtype, shape), None)
    by_input = grad
    if train:
        share = x.shape[1] / x.numel()
        by_input = grad - (summed + (x - mean) * inverse * along) * share
    channels = (x.shape[1],)
    return (
        by_input * scale if output_mask[0] else None,
        along.reshape(channels) if output_mask[1] else None,
        summed.reshape(channels) if output_mask[2] else None,
    )


def _layer_norm(
    out: Spec, x: torch.Tensor, normalized: Ints, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> Sequence[tuple[Spec, UOp]]:
    dtype = opmath(COMPUTED[x.dtype])
    outer = x.dim() - len(normalized)
    elements = cast(stored(read(x)), dtype)
    mean, variance = moments(elements, range(outer, x.dim()))
    inverse = inverse_root(variance, eps).contiguous()
    weights, biases = optional(_read(weight), dtype, normalized), optional(_read(bias), dtype, normalized)
    result = affine((elements - mean) * inverse, weights, biases)
    size = (*x.shape[:outer], *[1] * len(normalized))
    strides = torch.empty(size, device="meta").stride()
    saved = Spec(statistics_dtype(x, weight, bias), size, strides)
    return (out, result), (saved, mean), (saved, inverse)


@value("native_layer_norm_backward", deferrable=True)
def layer_norm_backward(
    ctx: Context, grad: UOp, x: UOp, normalized: Ints, mean: UOp, inverse: UOp, weight: UOp | None, bias: UOp | None,
    output_mask: Sequence[bool],
) -> tuple[UOp | None, ...]:  # fmt: skip
    """Gradients of the input, the weight and the bias."""
    dtype = opmath(x.dtype)
    outer = x.ndim - len(normalized)
    grad, x = cast(stored(grad), dtype), cast(x, dtype)
    hat = (x - cast(mean, dtype)) * cast(inverse, dtype)
    inner, batch, kept = tuple(range(outer, x.ndim)), tuple(range(outer)), x.shape[outer:]
    scaled = affine(grad, optional(weight, dtype, normalized), None)
    by_input = (scaled - mean_of(scaled, inner) - hat * mean_of(scaled * hat, inner)) * cast(inverse, dtype)
    return (
        by_input if output_mask[0] else None,
        total(grad * hat, batch).reshape(kept) if output_mask[1] and weight is not None else None,
        total(grad, batch).reshape(kept) if output_mask[2] and bias is not None else None,
    )


def _group_norm(
    out: Spec, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, n: int, channels: int,
    area: int, groups: int, eps: float,
) -> Sequence[tuple[Spec, UOp]]:  # fmt: skip
    # For channels-last images whose dimensions of size 1 have unusual strides, the CPU's kernel reports that they are
    # not contiguous. Compiled graphs contain such images: FakeTensor's view gives strides that torch's own view does
    # not give.
    if not any(x.is_contiguous(memory_format=format) for format in _formats(x)):
        raise MetaRejected("the CPU's kernel takes contiguous inputs only")
    dtype = opmath(COMPUTED[x.dtype])
    elements = cast(stored(read(x)), dtype).reshape((n, groups, channels // groups, area))
    mean, variance = moments(elements, (2, 3))
    inverse = inverse_root(variance, eps).contiguous()
    shape = (1, groups, channels // groups, 1)
    result = affine(
        (elements - mean) * inverse, optional(_read(weight), dtype, shape), optional(_read(bias), dtype, shape)
    )
    saved = Spec(statistics_dtype(x, weight, bias), (n, groups), (groups, 1))
    mean, inverse = (v.reshape((n, groups)) for v in (mean, inverse))
    return (_like(x), result.reshape(tuple(x.shape))), (saved, mean), (saved, inverse)


def _like(x: torch.Tensor) -> Spec:
    """Metadata of a result that the CPU allocates by at::empty_like(x, x.suggest_memory_format())."""
    meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return Spec(x.dtype, tuple(x.shape), torch.empty_like(meta, memory_format=suggested_format(x)).stride())


def _dense(x: torch.Tensor) -> Spec:
    """Metadata of a result of batch norm: dense in the first format in which x is dense, else contiguous."""
    format = next((layout for layout in _formats(x) if x.is_contiguous(memory_format=layout)), torch.contiguous_format)
    return Spec(x.dtype, tuple(x.shape), torch.empty(x.shape, device="meta", memory_format=format).stride())


def _formats(x: torch.Tensor) -> list[torch.memory_format]:
    """Memory formats that a contiguous tensor with this number of dimensions may have."""
    of_images = {4: torch.channels_last, 5: torch.channels_last_3d}
    return [torch.contiguous_format, *([of_images[x.dim()]] if x.dim() in of_images else [])]


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """Result of at::Tensor::suggest_memory_format."""
    return torch_compat.suggest_memory_format(x)


@value("native_group_norm_backward", deferrable=True)
def group_norm_backward(
    ctx: Context, grad: UOp, x: UOp, mean: UOp, inverse: UOp, weight: UOp | None, n: int, channels: int, area: int,
    groups: int, output_mask: Sequence[bool],
) -> tuple[UOp | None, ...]:  # fmt: skip
    """Gradients of the input, the weight and the bias."""
    dtype, size = opmath(x.dtype), x.shape
    shape = (n, groups, channels // groups, area)
    grad, x = cast(stored(grad), dtype).reshape(shape), cast(x, dtype).reshape(shape)
    mean, inverse = (cast(v, dtype).reshape((n, groups, 1, 1)) for v in (mean, inverse))
    hat = (x - mean) * inverse
    scaled = affine(grad, optional(weight, dtype, (1, groups, channels // groups, 1)), None)
    by_input = (scaled - mean_of(scaled, (2, 3)) - hat * mean_of(scaled * hat, (2, 3))) * inverse
    return (
        by_input.reshape(size) if output_mask[0] else None,
        total(grad * hat, (0, 3)).reshape((channels,)) if output_mask[1] else None,
        total(grad, (0, 3)).reshape((channels,)) if output_mask[2] else None,
    )


def _running(args: Sequence[Any]) -> Sequence[int]:
    """Argument positions of the running statistics if they are updated, otherwise none."""
    return (3, 4) if args[5] else ()


def _queued(op: Any, compute: Callable[..., Any], takes_empty: bool = False, writes: Any = lambda args: ()) -> Any:
    return deferral.whole(_native(op, compute, takes_empty), str(op), writes)


@decomposition("_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of v and g of w = g * v / |v|, where the norm is over all dimensions but `dim`.

    torch has a decomposition of the forward call alone.
    """
    wide = torch.promote_types(saved_v.dtype, torch.float32)
    grad, v, g, norms = (t.to(wide) for t in (grad_w, saved_v, saved_g, saved_norms))
    along = (grad * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True) / norms
    return (g / norms * (grad - v * (along / norms))).to(saved_v.dtype), along.to(saved_g.dtype)


_batch = _queued(aten.native_batch_norm.default, _batch_norm, writes=_running)
_legit = _queued(aten._native_batch_norm_legit.default, _batch_norm, writes=_running)
_legit_no_stats = _native(aten._native_batch_norm_legit.no_stats, _no_stats)
_OUT = ("out", "save_mean", "save_invstd")

KERNELS: dict[str, Callable[..., Any]] = {
    "native_batch_norm": _batch,
    "native_batch_norm.out": _into(_batch, _OUT),
    "_native_batch_norm_legit": _legit,
    "_native_batch_norm_legit.out": _into(_legit, _OUT),
    "_native_batch_norm_legit.no_stats": _legit_no_stats,
    "_native_batch_norm_legit.no_stats_out": _into(_legit_no_stats, _OUT),
    "_batch_norm_with_update": _native(aten._batch_norm_with_update.default, _with_update),
    "native_layer_norm": _queued(aten.native_layer_norm.default, _layer_norm, takes_empty=True),
    "native_group_norm": _native(aten.native_group_norm.default, _group_norm),
}
