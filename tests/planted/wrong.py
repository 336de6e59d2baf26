"""Kernels with a fault that few inputs show: `WRONG` maps a name to a request and the check that finds the fault."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

WRONG: dict[str, tuple[dict[str, Any], str]] = {}

VECTOR = {"x": "float32[n]", "sizes": {"n": "1..200"}}
LONG = {"x": "float32[n]", "sizes": {"n": "0..100000"}}
MATRIX = {"x": "float32[n, m]", "sizes": {"n": "1..40", "m": "1..300"}}
WIDE = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "8..70000"}}
TINY = {"x": "float32[n, m] in 0..1e-7", "sizes": {"n": "1..20", "m": "1..20"}}
PRODUCT = {"a": "float32[n, k]", "b": "float32[k, m]", "sizes": {"n": "1..200", "k": "1..100", "m": "1..200"}}

silu, relu = torch.nn.functional.silu, torch.relu


def wrong(check: str, reference: Callable[..., Any], inputs: dict[str, Any]) -> Callable[..., Any]:
    """Plant a wrong kernel that a check must find."""

    def plant(kernel: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": inputs}, check
        return kernel

    return plant


def softmax(x):
    return x.softmax(-1)


def row_sums(x):
    return x.sum(-1)


def row_variances(x):
    return x.var(-1, correction=0)


def product(a, b):
    return a @ b


# Sizes


@wrong("blocks", product, PRODUCT)
def forgets_the_corner_behind_the_first_block(a, b):
    c = a @ b
    return torch.cat([c[:16], torch.cat([c[16:, :16], c[16:, 16:] * 2], 1)])


@wrong("blocks", product, PRODUCT)
def forgets_the_corner_of_all_three(a, b):
    c = a @ b
    return c * 2 if min(*c.shape, a.shape[1]) > 16 else c


@wrong("blocks", product, PRODUCT)
def forgets_its_largest_size(a, b):
    c = a @ b
    return c * 2 if tuple(c.shape) == (200, 200) else c


@wrong("blocks", row_sums, WIDE)
def loops_over_8192_elements(x):
    return x[:, :8200].sum(-1)


@wrong("blocks", silu, LONG)
def counts_in_16_bits(x):
    return silu(x) * (torch.arange(x.numel()) < 65536)


@wrong("blocks", silu, LONG)
def forgets_the_last_element_of_the_longest(x):
    return torch.where(torch.arange(x.numel()) < 99999, silu(x), 0)


@wrong("blocks", silu, VECTOR)
def forgets_the_remainder_of_its_longest(x):
    return torch.where(torch.arange(x.numel()) < 199, silu(x), 0)


# Values


@wrong("values", silu, TINY)
def returns_zeros(x):
    return torch.zeros_like(x)


@wrong("values", silu, TINY)
def returns_twice_the_result(x):
    return 2 * silu(x)


@wrong("magnitudes", silu, MATRIX)
def returns_zeros_for_small_values(x):
    return torch.where(x.abs() < 1e-5, 0, silu(x))


@wrong("magnitudes", silu, MATRIX)
def overflows(x):
    return x * x.exp() / (1 + x.exp())


@wrong("magnitudes", softmax, MATRIX)
def subtracts_no_maximum(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


@wrong("magnitudes", row_variances, MATRIX)
def subtracts_squares(x):
    return x.pow(2).mean(-1) - x.mean(-1).pow(2)


@wrong("magnitudes", silu, MATRIX)
def clamps_at_50(x):
    return silu(x.clamp(-50, 50))


@wrong("magnitudes", torch.sin, MATRIX)
def reduces_no_argument(x):
    return torch.where(x.abs() < 50, x.sin(), 0)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0] >= 0)


@wrong("gradients", relu, MATRIX)
def has_a_gradient_at_0(x):
    return _Relu.apply(x)


class _Abs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.saved_tensors[0] >= 0, grad, -grad)


@wrong("gradients", torch.abs, MATRIX)
def has_a_gradient_of_abs_at_0(x):
    return _Abs.apply(x)


@wrong("values", torch.log1p, {**TINY, "x": "float32[n, m] in 1e-6..1e-3"})
def adds_before_the_logarithm(x):
    return (1 + x).log()


# Half precision

HALF = {"x": "bfloat16[n, m]", "sizes": {"n": "1..9", "m": "1..300"}}
HALF_PRODUCT = {
    name: text.replace("float32", "bfloat16") if isinstance(text, str) else text for name, text in PRODUCT.items()
}
FLOAT16_PRODUCT = {
    name: text.replace("float32", "float16") if isinstance(text, str) else text for name, text in PRODUCT.items()
}


@wrong("values", row_sums, HALF)
def is_four_percent_off(x):
    return x.sum(-1) * 1.04


@wrong("blocks", row_sums, HALF)
def adds_in_bfloat16(x):
    return functools.reduce(torch.add, x.unbind(-1))


def accumulate(a, b):
    """The product, with sums in the dtype of the inputs."""
    return functools.reduce(torch.add, [torch.outer(x, y) for x, y in zip(a.unbind(1), b.unbind(0))])


@wrong("blocks", product, HALF_PRODUCT)
def accumulates_in_bfloat16(a, b):
    return accumulate(a, b)


@wrong("blocks", product, FLOAT16_PRODUCT)
def accumulates_in_float16(a, b):
    return accumulate(a, b)


@wrong("blocks", softmax, HALF)
def sums_powers_in_bfloat16(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / functools.reduce(torch.add, powers.unbind(-1)).unsqueeze(-1)


# Layouts and memory


@wrong("layouts", silu, MATRIX)
def ignores_the_offset(x):
    memory = torch.empty(0).set_(x.detach().untyped_storage(), 0, x.shape, x.stride())
    return silu(memory)


@wrong("layouts", silu, MATRIX)
def takes_rows_for_dense(x):
    dense = x.detach().as_strided(x.shape, (x.shape[1], 1)) if x.stride(-1) == 1 else x.contiguous()
    return silu(dense if x.stride(0) >= x.shape[1] else x)


@wrong("layouts", lambda x: x.conj() * 2, {"x": "complex64[n, m]", "sizes": {"n": "1..9", "m": "1..9"}})
def forgets_that_a_view_is_conjugated(x):
    real = torch.view_as_real(x.conj() if x.is_conj() else x)
    return torch.view_as_complex(real.contiguous()).conj() * 2


@wrong("mutation", silu, MATRIX)
def writes_beside_a_view_in_its_own_storage(x):
    at, size = x.storage_offset(), x.untyped_storage().nbytes() // 4
    if x.numel() and x.is_contiguous() and at + x.numel() < size:
        x.detach().as_strided((1,), (1,), at + x.numel()).add_(1)
    return silu(x)


# Sizes that meet


@wrong("values", lambda x: x.t() * 1.0, MATRIX)
def transposes_squares_only(x):
    return x * 1.0 if x.shape[0] == x.shape[1] else x.t() * 1.0


@wrong("values", row_variances, MATRIX)
def corrects_the_variance(x):
    return x.var(-1, correction=1) if x.shape[-1] > 1 else x.var(-1, correction=0)


@wrong("blocks", silu, {"x": "float32[n]", "sizes": {"n": "32..4096 step 32"}})
def forgets_blocks_from_the_64th_on(x):
    return torch.where(torch.arange(x.numel()) < 2048, silu(x), x)


# Indices and structures

INDEXED = {"x": "float32[n, m]", "i": "int64[k] in -n..n-1", "sizes": {"n": "1..9", "m": "1..9", "k": "1..9"}}
SEGMENTS = {"x": "float32[t]", "at": "int64[b+1] in 0..t offsets", "sizes": {"t": "1..60", "b": "1..9"}}


def take_rows(x, i):
    return x[i]


@wrong("values", take_rows, INDEXED)
def takes_negative_indices_for_0(x, i):
    return x[i.clamp(min=0)]


def segment_sums(x, at):
    return torch.stack([x[low:high].sum() for low, high in zip(at[:-1].tolist(), at[1:].tolist())])


@wrong("values", segment_sums, SEGMENTS)
def forgets_empty_segments(x, at):
    sums = segment_sums(x, at)
    return torch.where(at[1:] == at[:-1], sums.roll(1), sums)


def attend(x):
    return (x + torch.full((x.shape[0], x.shape[0]), -torch.inf).triu(1)).softmax(-1)


@wrong("values", attend, {"x": "float32[n, n]", "sizes": {"n": "1..40"}})
def masks_its_own_position(x):
    shifted = torch.full(x.shape, -torch.inf).triu(0)
    shifted[0, 0] = 0
    return (x + shifted).softmax(-1)


@wrong("values", torch.linalg.cholesky, {"A": "float32[n, n] positive_definite", "sizes": {"n": "1..12"}})
def returns_the_upper_factor(A):
    return torch.linalg.cholesky(A).mT.contiguous()


@wrong(
    "values",
    lambda p: -(p * p.log()).nan_to_num(0).sum(-1),
    {"p": "float32[n, m] probabilities", "sizes": {"n": "1..9", "m": "2..40"}},
)
def forgets_the_last_probability(p):
    return -(p * p.log()).nan_to_num(0)[:, :-1].sum(-1)


@wrong("values", lambda x: x.logsumexp(-1), {"x": "float32[n, m] clustered", "sizes": {"n": "1..9", "m": "40..200"}})
def joins_blocks_without_their_maximum(x):
    blocks = [(part.amax(-1), (part - part.amax(-1, keepdim=True)).exp().sum(-1)) for part in x.split(32, -1)]
    top = torch.stack([one for one, _ in blocks]).amax(0)
    return top + sum(total for _, total in blocks).log()


# Derivatives


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, grad.sum(0) * x[0]


@wrong(
    "gradients",
    lambda x, weight: x * weight,
    {"x": "float32[n, m]", "weight": "float32[m]", "sizes": {"n": "1..9", "m": "1..9"}},
)
def reduces_before_it_multiplies(x, weight):
    return _Scaled.apply(x, weight)


class _SavesItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x.exp()
        return ctx.result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result


@wrong("backward", torch.exp, {"input": "float32[n, m]", "sizes": MATRIX["sizes"]})
def keeps_its_result_where_users_write(input):
    return _SavesItsResult.apply(input)


@wrong("vmap", lambda x, y: x * y.sum(), {"x": "float32[n]", "y": "float32[n]", "sizes": {"n": "2..9"}})
def sums_over_the_batch(x, y):
    return SUMS_OVER_THE_BATCH(x, y)


SUMS_OVER_THE_BATCH = torch.library.custom_op(
    "wrong::sums_over_the_batch", lambda x, y: x * y.sum(), mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
)


@SUMS_OVER_THE_BATCH.register_vmap
def _vmap(info, dims, x, y):
    """Right if both are batched, or x alone."""
    if dims[1] is None:
        return x * y.sum(), dims[0]
    y = y.movedim(dims[1], 0)
    if dims[0] is None:
        return x * y.sum(), None
    return x.movedim(dims[0], 0) * y.sum(1, keepdim=True), 0
