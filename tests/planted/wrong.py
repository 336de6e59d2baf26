"""Kernels with a fault that few inputs show, and right ones that compute otherwise than their reference.

`WRONG` maps a name to a request and the check that finds the fault, and `HONEST` maps a name to a request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

WRONG: dict[str, tuple[dict[str, Any], str]] = {}
HONEST: dict[str, dict[str, Any]] = {}

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


def honest(reference: Callable[..., Any], inputs: dict[str, Any], **more: Any) -> Callable[..., Any]:
    """Plant a right kernel."""

    def plant(kernel: Callable[..., Any]) -> Callable[..., Any]:
        HONEST[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": inputs, **more}
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


# Right kernels


@honest(silu, MATRIX)
def silu_by_sigmoid(x):
    return x * torch.sigmoid(x)


@honest(softmax, MATRIX)
def softmax_by_exp(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@honest(row_sums, MATRIX)
def sums_by_blocks(x):
    return functools.reduce(torch.add, [part.sum(-1) for part in x.split(64, -1)])


@honest(row_sums, WIDE)
def sums_by_pairs(x):
    while x.shape[-1] > 1:
        x = torch.nn.functional.pad(x, (0, x.shape[-1] % 2))
        x = x[:, ::2] + x[:, 1::2]
    return x[:, 0]


@honest(row_variances, MATRIX)
def variances_in_two_passes(x):
    return (x - x.mean(-1, keepdim=True)).pow(2).mean(-1)


@honest(row_variances, MATRIX)
def variances_by_welford(x):
    mean, total = torch.zeros(x.shape[0]), torch.zeros(x.shape[0])
    for count, column in enumerate(x.unbind(-1), 1):
        off = column - mean
        mean = mean + off / count
        total = total + off * (column - mean)
    return total / x.shape[-1]


@honest(product, PRODUCT)
def product_by_outer_products(a, b):
    return functools.reduce(torch.add, [torch.outer(x, y) for x, y in zip(a.unbind(1), b.unbind(0))])


@honest(product, PRODUCT)
def product_in_float64(a, b):
    return (a.double() @ b.double()).float()


@honest(relu, MATRIX)
def relu_by_where(x):
    return torch.where(x <= 0, 0, x)


@honest(lambda x: torch.logsumexp(x, -1), MATRIX)
def logsumexp_by_maximum(x):
    top = x.amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0)
    return (top + (x - top).exp().sum(-1, keepdim=True).log()).squeeze(-1)


@honest(torch.nn.functional.gelu, MATRIX)
def gelu_by_erf(x):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


@honest(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), MATRIX)
def layer_norm_by_hand(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


@honest(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), MATRIX)
def rms_norm_by_hand(x):
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt()


@honest(lambda x: x.sort(-1).values, MATRIX)
def sort_by_topk(x):
    return x.topk(x.shape[-1], -1, largest=False).values


@honest(lambda x: torch.nn.functional.dropout(x, 0.5, True), MATRIX)
def dropout_by_the_same_numbers(x):
    return torch.nn.functional.dropout(x, 0.5, True)


@honest(lambda x: x.mean(-1), MATRIX)
def means_in_numpy(x):
    return torch.from_numpy(x.detach().numpy().mean(-1))


HONEST["means_in_numpy"]["exclude"] = {"gradients": "for inference"}
