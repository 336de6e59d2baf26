"""Right kernels that compute otherwise than their reference: `HONEST` maps a name to a request."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy
import torch

from tests.planted.wrong import (
    BAGS,
    CAST,
    HALF,
    HALF_PRODUCT,
    HEADS,
    INDEXED,
    LOSS,
    MATRIX,
    NORM,
    PRODUCT,
    QUANTIZED,
    ROPE,
    SCATTERED,
    SEGMENTS,
    WIDE,
    CastProduct,
    attend,
    attention,
    cross_entropy,
    is_cast,
    mean_bags,
    product,
    quantize,
    relu,
    rms_norm,
    rotate,
    row_sums,
    row_variances,
    segment_sums,
    silu,
    softmax,
    take_rows,
)

HONEST: dict[str, dict[str, Any]] = {}


def honest(reference: Callable[..., Any], inputs: dict[str, Any], **more: Any) -> Callable[..., Any]:
    """Plant a right kernel."""

    def plant(kernel: Callable[..., Any]) -> Callable[..., Any]:
        HONEST[kernel.__name__] = {"operator": kernel, "reference": reference, "inputs": inputs, **more}
        return kernel

    return plant


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
def product_by_panels(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for at in range(0, a.shape[1], 32):
        total += a[:, at : at + 32] @ b[at : at + 32]
    return total


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


# Algorithms with other intermediate results


@honest(row_sums, MATRIX, exclude={"specials_inf": "the compensation is nan"})
def sums_with_compensation(x):
    total, lost = x.new_zeros(x.shape[0]), x.new_zeros(x.shape[0])
    for column in x.unbind(-1):
        y = column - lost
        t = total + y
        lost, total = (t - total) - y, t
    return total


@honest(row_variances, MATRIX, exclude={"specials_inf": "infinities cancel"})
def variances_from_var_mean(x):
    return torch.var_mean(x, -1, correction=0)[0]


SQUARES = {**dict.fromkeys("ab", "float32[2*n, 2*n]"), "sizes": {"n": "1..20"}}
SPREADS = dict.fromkeys(("specials_inf", "specials_nan"), "they reach each block")


@honest(product, SQUARES, exclude=SPREADS)
def product_by_strassen(a, b):
    n = a.shape[0] // 2
    a11, a12, a21, a22 = a[:n, :n], a[:n, n:], a[n:, :n], a[n:, n:]
    b11, b12, b21, b22 = b[:n, :n], b[:n, n:], b[n:, :n], b[n:, n:]
    p1, p2, p3 = (a11 + a22) @ (b11 + b22), (a21 + a22) @ b11, a11 @ (b12 - b22)
    p4, p5 = a22 @ (b21 - b11), (a11 + a12) @ b22
    p6, p7 = (a21 - a11) @ (b11 + b12), (a12 - a22) @ (b21 + b22)
    return torch.cat([torch.cat([p1 + p4 - p5 + p7, p3 + p5], 1), torch.cat([p2 + p4, p1 - p2 + p3 + p6], 1)])


@honest(product, SQUARES, exclude=SPREADS)
def product_by_winograd(a, b):
    n = a.shape[0] // 2
    a11, a12, a21, a22 = a[:n, :n], a[:n, n:], a[n:, :n], a[n:, n:]
    b11, b12, b21, b22 = b[:n, :n], b[:n, n:], b[n:, :n], b[n:, n:]
    s1, s3, t1, t3 = a21 + a22, a11 - a21, b12 - b11, b22 - b12
    s2, t2 = s1 - a11, b22 - t1
    first = a11 @ b11
    u1 = first + s2 @ t2
    u2, u3 = u1 + s3 @ t3, u1 + s1 @ t1
    rows = [[first + a12 @ b21, u3 + (a12 - s2) @ b22], [u2 - a22 @ (t2 - b21), u2 + s1 @ t1]]
    return torch.cat([torch.cat(row, 1) for row in rows])


@honest(product, SQUARES, exclude=SPREADS)
def strassen_in_padded_memory(a, b):
    """Other strides must not keep its rounding from being judged."""
    return torch.nn.functional.pad(product_by_strassen(a, b), (0, 3))[:, : b.shape[1]]


@honest(torch.nn.functional.softplus, {"input": "float32[n, m] in -9..9", "sizes": MATRIX["sizes"]})
def softplus_without_log1p(input):
    return (1 + input.exp()).log()


def convolve(x, w):
    return torch.nn.functional.conv1d(x[None, None], w.flip(0)[None, None], padding=w.shape[0] - 1)[0, 0]


@honest(convolve, {"x": "float32[n] in -1..1", "w": "float32[k] in -1..1", "sizes": {"n": "1..60", "k": "1..9"}})
def convolution_by_fourier_transform(x, w):
    size = x.shape[0] + w.shape[0] - 1
    return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(w, size), size)


@honest(take_rows, INDEXED, exclude={"specials_inf": "0 * inf", "specials_nan": "0 * nan"})
def rows_by_one_hot_product(x, i):
    return torch.nn.functional.one_hot(i % x.shape[0], x.shape[0]).to(x.dtype) @ x


@honest(segment_sums, SEGMENTS)
def segments_by_index_add(x, at):
    owner = torch.repeat_interleave(torch.arange(at.shape[0] - 1), at[1:] - at[:-1])
    return x.new_zeros(at.shape[0] - 1).index_add(0, owner, x)


@honest(softmax, {**MATRIX, "x": "float32[n, m] in -8..8"})
def softmax_by_logsumexp(x):
    return (x - x.logsumexp(-1, keepdim=True)).exp()


@honest(softmax, MATRIX, exclude={"specials_inf": "an infinite maximum of a block"})
def softmax_online(x):
    top, total = x.new_full(x.shape[:1], -torch.inf), x.new_zeros(x.shape[0])
    for part in x.split(32, -1):
        new = torch.maximum(top, part.amax(-1))
        total = total * (top - new).exp() + (part - new[:, None]).exp().sum(-1)
        top = new
    return (x - top[:, None]).exp() / total[:, None]


@honest(
    attend,
    {"x": "float32[n, n]", "sizes": {"n": "1..40"}},
    exclude=dict.fromkeys(("specials_inf", "specials_nan"), "a masked one counts in the sum"),
)
def attention_by_masked_fill(x):
    mask = torch.ones(x.shape, dtype=torch.bool).triu(1)
    return x.masked_fill(mask, -torch.inf).softmax(-1)


# Half precision


@honest(row_sums, HALF)
def half_sums_in_float32(x):
    return x.float().sum(-1).to(x.dtype)


@honest(product, HALF_PRODUCT)
def half_product_in_float32(a, b):
    return (a.float() @ b.float()).to(a.dtype)


@honest(softmax, HALF)
def half_softmax_in_float32(x):
    powers = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


@honest(silu, {"input": HALF["x"], "sizes": HALF["sizes"]})
def half_silu_in_float32(input):
    wide = input.float()  # once: its gradients are then added in float32, too
    return (wide * torch.sigmoid(wide)).to(input.dtype)


@honest(product, HALF_PRODUCT)
def half_product_by_blocks(a, b):
    parts = [x.float() @ y.float() for x, y in zip(a.split(16, 1), b.split(16, 0))]
    return functools.reduce(torch.add, parts).to(a.dtype)


@honest(torch.mm, CAST)
def casts_itself_under_autocast(input, mat2):
    if not is_cast(input):
        return input @ mat2
    return (input.bfloat16().float() @ mat2.bfloat16().float()).bfloat16()


@honest(torch.mm, CAST)
def casts_to_the_dtype_of_autocast(input, mat2):
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
    with torch.autocast("cpu", enabled=False):
        return (input.to(dtype).float() @ mat2.to(dtype).float()).to(dtype)


@honest(torch.mm, CAST)
def casts_its_inputs_under_autocast(input, mat2):
    return CastProduct.apply(input, mat2, half_product_in_float32)


@honest(attention, {**HEADS, **dict.fromkeys(("q", "k", "v"), "float32[h, n, d] in -4..4")})
def attention_that_casts_itself(q, k, v):
    """As a fused kernel does: it multiplies halves, and adds in float32."""
    cast = (lambda x: x.bfloat16().float()) if torch.is_autocast_enabled("cpu") else lambda x: x
    with torch.autocast("cpu", enabled=False):
        scores = cast(q) @ cast(k).mT / q.shape[-1] ** 0.5
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return cast(cast(powers) @ cast(v) / powers.sum(-1, keepdim=True))


@honest(lambda a, b, c: (a @ b) @ c, {**dict.fromkeys("abc", "float32[n, n]"), "sizes": {"n": "1..64"}})
def product_of_three_from_the_right(a, b, c):
    return a @ (b @ c)


@honest(
    lambda x, w, v: torch.nn.functional.gelu(x @ w) @ v + x,
    {"x": "float32[n, m]", "w": "float32[m, k]", "v": "float32[k, m]", "sizes": dict.fromkeys("nmk", "1..70")},
)
def network_by_parts(x, w, v):
    hidden = torch.cat([torch.nn.functional.gelu(x @ part) for part in w.split(16, 1)], 1)
    return x + sum(a @ b for a, b in zip(hidden.split(16, 1), v.split(16, 0)))


# Choices


@honest(lambda x: x.argmax(-1), MATRIX, ties="any")
def argmax_of_the_last(x):
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


@honest(lambda x: x.argsort(dim=-1, stable=True), MATRIX, ties="any")
def argsort_from_the_end(x):
    return x.shape[-1] - 1 - x.flip(-1).argsort(dim=-1, stable=True)


SEEDS = itertools.count()


def own_generator():
    return torch.Generator().manual_seed(next(SEEDS))


@honest(lambda x: torch.nn.functional.dropout(x, 0.25, True), MATRIX, random=True)
def dropout_by_numbers_of_its_own(x):
    return x * (torch.rand(x.shape, generator=own_generator()) >= 0.25) / 0.75


@honest(lambda x: x + torch.randn(x.shape), MATRIX, random=True)
def noise_by_box_and_muller(x):
    u, v = (torch.rand(x.shape, generator=own_generator(), dtype=torch.float64) for _ in range(2))
    return x + ((-2 * (1 - u).log()).sqrt() * (2 * torch.pi * v).cos()).to(x.dtype)


@honest(lambda x: x.bernoulli(), {"x": "float32[n] in 0..1", "sizes": {"n": "1..60"}}, random=True)
def bernoulli_by_comparison(x):
    return (torch.rand(x.shape, generator=own_generator()) < x).to(x.dtype)


# Refusals, and memory


@honest(lambda x: x * 2, MATRIX)
def refuses_strided_inputs(x):
    if not x.is_contiguous():
        raise NotImplementedError("dense inputs only")
    return x + x


@honest(lambda x: x * 2, {"x": "float32[n, m]", "sizes": {"n": "0..9", "m": "0..9"}})
def has_no_gradient_without_elements(x):
    return x + x if x.numel() else torch.empty(x.shape)


@honest(lambda x: x.mul_(2), MATRIX)
def doubles_in_place(x):
    return x.add_(x)


@honest(lambda x: x.t(), MATRIX)
def view_by_permutation(x):
    return x.permute(1, 0)


@honest(lambda x: x.cumsum(-1), MATRIX)
def cumsum_by_doubling(x):
    step = 1
    while step < x.shape[-1]:
        x = torch.cat([x[:, :step], x[:, step:] + x[:, :-step]], -1)
        step *= 2
    return x.clone()


HONEST["cumsum_by_doubling"]["exclude"] = {"specials_inf": "inf - inf in another order"}


# Derivatives written by hand


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


@honest(torch.exp, {"input": MATRIX["x"], "sizes": MATRIX["sizes"]})
def exp_that_saves_its_result(input):
    return _Exp.apply(input)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return grad * s * (1 + ctx.saved_tensors[0] * (1 - s))


@honest(silu, {"input": MATRIX["x"], "sizes": MATRIX["sizes"]})
def silu_differentiable_once(input):
    return _Once.apply(input)


class _InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(numpy.tanh(x.detach().numpy()))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * torch.from_numpy(1 - numpy.tanh(ctx.saved_tensors[0].detach().numpy()) ** 2)


@honest(torch.tanh, {"input": MATRIX["x"], "sizes": MATRIX["sizes"]})
def tanh_in_numpy(input):
    return _InNumpy.apply(input)


# Structures


@honest(torch.linalg.cholesky, {"A": "float32[n, n] positive_definite", "sizes": {"n": "1..12"}})
def cholesky_by_columns(A):
    columns: list[torch.Tensor] = []
    for at in range(A.shape[0]):
        column = A[:, at] - sum((one * one[at] for one in columns), torch.zeros(A.shape[0]))
        columns.append(torch.where(torch.arange(A.shape[0]) >= at, column / column[at].sqrt(), 0))
    return torch.stack(columns, 1)


HONEST["cholesky_by_columns"]["exclude"] = dict.fromkeys(
    ("gradients", "second", "forward_mode"), "they are defined for symmetric changes only"
)


@honest(
    lambda pages, table: pages[table].flatten(1),
    {
        "pages": "float32[p, s]",
        "table": "int64[b, k] in 0..p-1 unique",
        "sizes": {"p": "16..20", "s": "1..4", "b": "1..4", "k": "1..4"},
    },
)
def pages_by_index_select(pages, table):
    return pages.index_select(0, table.flatten()).view(table.shape[0], -1)


@honest(
    lambda xs, y: sum((x.sum() for x in xs), y),
    {"xs": "k * float32[n]", "y": "float32[n]", "sizes": {"n": "1..9", "k": "1..5"}},
)
def sums_of_a_list(xs, y):
    return y + torch.stack([x.sum() for x in xs]).sum()


# Written as a kernel author would, for operators of language models and data, without a look at the checks


@honest(rms_norm, NORM)
def rms_norm_by_rows(x, weight):
    length = x.shape[-1]
    return x / ((x * x).sum(-1, keepdim=True) / length + 1e-6).sqrt() * weight


@honest(attention, {**HEADS, **dict.fromkeys(("q", "k", "v"), "float32[h, n, d] in -4..4")})
def attention_by_blocks(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    top, total, result = torch.full_like(scores[..., :1], -torch.inf), 0, 0
    for part, values in zip(scores.split(64, -1), v.split(64, -2)):
        new = torch.maximum(top, part.amax(-1, keepdim=True)).detach()
        powers, shrinks = (part - new).exp(), (top - new).exp()
        total, result = total * shrinks + powers.sum(-1, keepdim=True), result * shrinks + powers @ values
        top = new
    return result / total


@honest(rotate, ROPE)
def rope_by_complex_numbers(x, cosines, sines):
    a, b = x.chunk(2, -1)
    turned = torch.complex(a, b) * torch.complex(cosines, sines)
    return torch.cat([turned.real, turned.imag], -1)


HONEST["rope_by_complex_numbers"]["exclude"] = dict.fromkeys(
    ("specials_inf", "specials_nan"), "torch multiplies complex infinities in its own way"
)


@honest(quantize, QUANTIZED, exclude=dict.fromkeys(("specials_inf", "specials_nan"), "not defined in int8"))
def quantize_in_two_steps(x, scale):
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


@honest(mean_bags, BAGS)
def bags_by_index_add(table, rows, at):
    counts = at[1:] - at[:-1]
    owner = torch.repeat_interleave(torch.arange(at.shape[0] - 1), counts)
    sums = table.new_zeros(at.shape[0] - 1, table.shape[1]).index_add(0, owner, table[rows])
    return sums / counts.clamp(min=1)[:, None].to(table.dtype)


@honest(cross_entropy, {**LOSS, "x": "float32[n, c] in -30..30"})
def cross_entropy_by_logsumexp(x, target):
    right = x.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(target >= 0, x.logsumexp(-1) - right, 0).sum()


@honest(lambda x, index, rows: x.index_add(0, index, rows), SCATTERED)
def scatter_by_one_hot_product(x, index, rows):
    return x + torch.nn.functional.one_hot(index, x.shape[0]).to(x.dtype).mT @ rows


HONEST["scatter_by_one_hot_product"]["exclude"] = dict.fromkeys(("specials_inf", "specials_nan"), "0 * inf is nan")


@honest(lambda x: x.tril(), {"x": "float32[n, n]", "sizes": {"n": "1..20"}})
def lower_part_by_where(x):
    rows = torch.arange(x.shape[0])
    return torch.where(rows[:, None] >= rows, x, 0)
