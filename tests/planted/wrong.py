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


def wrong_like(check: str, like: Any) -> Callable[..., Any]:
    """Plant a wrong kernel for samples of op_db that a check must find."""

    def plant(kernel: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[kernel.__name__] = {"operator": kernel, "like": like}, check
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


@wrong("blocks", lambda x: x * 2, {"x": "float32[b, n, m]", "sizes": dict.fromkeys("bnm", "1..64")})
def forgets_the_corner_behind_32_in_three_dimensions(x):
    result = x * 2
    result[32:, 32:, 32:] = 0
    return result


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


@wrong("values", lambda x: (x.sum(-1), x * 1e-8), MATRIX)
def returns_zeros_beside_large_numbers(x):
    return x.sum(-1), torch.zeros_like(x)


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


@wrong("values", lambda x: torch.cat([x, x * 1e-8], -1), MATRIX)
def returns_zeros_beside_larger_elements(x):
    return torch.cat([x, torch.zeros_like(x)], -1)


@wrong("magnitudes", lambda x: x - x.mean(-1, keepdim=True), MATRIX)
def drops_rows_below_the_largest_one(x):
    centred = x - x.mean(-1, keepdim=True)
    return torch.where(centred.abs().amax(-1, keepdim=True) < 1e-3 * centred.abs().amax(), 0, centred)


@wrong("magnitudes", torch.nn.functional.softplus, {"input": "float32[n]", "sizes": VECTOR["sizes"]})
def is_the_identity_above_5(input):
    return torch.nn.functional.softplus(input, threshold=5)


@wrong("magnitudes", softmax, MATRIX)
def takes_nearly_equal_elements_for_equal(x):
    spread = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    return torch.where(spread < 0.02, 1 / x.shape[-1], x.softmax(-1))


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


# The same with `like=`: right answers below the tolerance of op_db, around 100 and 1e4, and from cancellation


@wrong_like("magnitudes", torch.nn.functional.gelu)
def is_zero_near_zero_in_op_db(x, approximate="none"):
    return torch.where(x.abs() < 1e-5, 0, torch.nn.functional.gelu(x, approximate=approximate))


@wrong_like("magnitudes", torch.sin)
def is_twice_the_sine_near_zero_in_op_db(x):
    return torch.where(x.abs() < 1e-5, 2 * x.sin(), x.sin())


@wrong_like("magnitudes", silu)
def clamps_at_50_in_op_db(x):
    return silu(x.clamp(-50, 50))


@wrong_like("magnitudes", torch.logsumexp)
def subtracts_no_maximum_in_op_db(input, dim, keepdim=False):
    return input.exp().sum(dim, keepdim).log()


@wrong_like("magnitudes", torch.var)
def subtracts_squares_in_op_db(input, dim=None, correction=1, keepdim=False):
    off = input.pow(2).mean(dim, keepdim) - input.mean(dim, keepdim).pow(2)
    count = input.numel() // max(off.numel(), 1)
    return off * count / max(count - correction, 0)


@wrong_like("magnitudes", torch.cos)
def reduces_no_argument_in_op_db(x):
    return torch.where(x.abs() < 1000, x.cos(), 1)


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


def is_cast(x):
    return torch.is_autocast_enabled("cpu") or x.dtype is torch.bfloat16


CAST = {"input": "float32[n, k]", "mat2": "float32[k, m]", "sizes": PRODUCT["sizes"]}


@wrong("autocast", torch.mm, CAST)
def adds_in_bfloat16_under_autocast(input, mat2):
    return accumulate(input.bfloat16(), mat2.bfloat16()) if is_cast(input) else input @ mat2


@wrong("autocast", torch.mm, CAST)
def adds_in_the_dtype_of_autocast(input, mat2):
    if not torch.is_autocast_enabled("cpu"):
        return input @ mat2
    dtype = torch.get_autocast_dtype("cpu")
    return accumulate(input.to(dtype), mat2.to(dtype))


ADDS_IN_ITS_DTYPE = torch.library.custom_op(
    "wrong::adds_in_its_dtype", accumulate, mutates_args=(), schema="(Tensor input, Tensor mat2) -> Tensor"
)
ADDS_IN_ITS_DTYPE.register_fake(lambda input, mat2: input.new_empty(input.shape[0], mat2.shape[1]))
ADDS_IN_ITS_DTYPE.register_autocast("cpu", torch.bfloat16)


@wrong("autocast", torch.mm, CAST)
def registers_a_cast_to_bfloat16_and_adds_in_it(input, mat2):
    return ADDS_IN_ITS_DTYPE(input, mat2)


class CastProduct(torch.autograd.Function):
    """A product whose inputs are cast under autocast, and whose backward multiplies by `multiply`."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, input, mat2, multiply):
        ctx.save_for_backward(input, mat2)
        ctx.multiply = multiply
        return (input.float() @ mat2.float()).to(input.dtype)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        input, mat2 = ctx.saved_tensors
        return ctx.multiply(grad, mat2.mT), ctx.multiply(input.mT, grad), None


@wrong("backward", torch.mm, CAST)
def adds_its_gradient_in_bfloat16_under_autocast(input, mat2):
    return CastProduct.apply(input, mat2, accumulate)


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


SUMS_OF_THREE = torch.library.custom_op(
    "wrong::sums_of_three",
    lambda x, y, z: x + y + z,
    mutates_args=(),
    schema="(Tensor x, Tensor y, Tensor z) -> Tensor",
)


@SUMS_OF_THREE.register_vmap
def _vmap_of_three(info, dims, x, y, z):
    """Right if all are batched, or one alone."""
    parts = [one if dim is None else one.movedim(dim, 0) for one, dim in zip((x, y, z), dims)]
    lost = dims[0] is None and dims[1] is not None and dims[2] is not None
    return sum(parts[: 2 if lost else 3]), 0


@wrong("vmap", lambda x, y, z: x + y + z, {**dict.fromkeys("xyz", "float32[n]"), "sizes": {"n": "2..9"}})
def forgets_the_third_of_two_batched(x, y, z):
    return SUMS_OF_THREE(x, y, z)


# Compiled once for all sizes


@torch.compiler.assume_constant_result
def column_count(x):
    return x.shape[-1]


@wrong("dynamic", lambda x: x.sum(-1) / x.shape[-1], MATRIX)
def means_by_first_column_count(x):
    return x.sum(-1) / column_count(x)


# Written as a kernel author would, for operators of language models and data, without a look at the checks

NORM = {"x": "float32[n, m]", "weight": "float32[m]", "sizes": {"n": "1..20", "m": "1..300"}}
HEADS = {
    **dict.fromkeys(("q", "k", "v"), "float32[h, n, d]"),
    "sizes": {"h": "1..3", "n": "1..150", "d": "4..64 step 4"},
}


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@wrong("values", rms_norm, NORM)
def normalizes_by_the_padded_length(x, weight):
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 16))
    return x * torch.rsqrt(padded.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@wrong("blocks", attention, HEADS)
def forgets_to_rescale_after_the_first_block(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    top, total, result = scores[..., :64].amax(-1, keepdim=True), 0, 0
    for part, values in zip(scores.split(64, -1), v.split(64, -2)):
        powers = (part - top).exp()
        top_here = torch.maximum(top, part.amax(-1, keepdim=True))
        total, result = total + powers.sum(-1, keepdim=True), result + powers @ values
        top = top_here
    return result / total


def rotate(x, cosines, sines):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosines - b * sines, a * sines + b * cosines], -1)


ROPE = {
    "x": "float32[n, h, 2*d]",
    **dict.fromkeys(("cosines", "sines"), "float32[n, 1, d] in -1..1"),
    "sizes": {"n": "1..30", "h": "1..4", "d": "1..32"},
}


@wrong("values", rotate, ROPE)
def rotates_neighbours_in_place_of_halves(x, cosines, sines):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cosines - b * sines, a * sines + b * cosines], -1).flatten(-2)


def quantize(x, scale):
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)


QUANTIZED = {"x": "float32[n, m]", "scale": "float32[n, 1] in 0.01..0.1", "sizes": {"n": "1..20", "m": "1..100"}}


@wrong("values", quantize, QUANTIZED)
def rounds_halves_away_and_wraps(x, scale):
    return (torch.floor(x / scale + 0.5).to(torch.int32) & 255).to(torch.uint8).view(torch.int8)


@wrong("blocks", lambda x: x.cumsum(-1), {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "1..300"}})
def loses_the_carry_of_the_third_block(x):
    parts, carry = [], 0
    for at, part in enumerate(x.split(64, -1)):
        sums = part.cumsum(-1)
        parts.append(sums + carry)
        carry = sums[:, -1:] + (carry if at != 1 else 0)
    return torch.cat(parts, -1)


TOP = {"x": "float32[n, m]", "sizes": {"n": "1..9", "m": "4..300"}}


@wrong("layouts", lambda x: x.topk(4, -1).values, TOP)
def sorts_the_memory_of_its_input(x):
    flat = torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), (x.shape[0], x.shape[1]), (x.shape[1], 1))
    return flat.topk(4, -1).values if x.stride(-1) == 1 else x.topk(4, -1).values


BAGS = {
    "table": "float32[v, d]",
    "rows": "int64[n] in 0..v-1",
    "at": "int64[b+1] in 0..n offsets",
    "sizes": {"v": "1..30", "d": "1..9", "b": "1..9", "n": "0..50"},
}


def mean_bags(table, rows, at):
    return torch.nn.functional.embedding_bag(rows, table, at, mode="mean", include_last_offset=True)


@wrong("values", mean_bags, BAGS)
def divides_empty_bags_by_zero(table, rows, at):
    sums = torch.nn.functional.embedding_bag(rows, table, at, mode="sum", include_last_offset=True)
    return sums / (at[1:] - at[:-1])[:, None]


LOSS = {"x": "float32[n, c]", "target": "int64[n] in -1..c-1", "sizes": {"n": "1..30", "c": "1..60"}}


def cross_entropy(x, target):
    return torch.nn.functional.cross_entropy(x, target, ignore_index=-1, reduction="sum")


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return cross_entropy(x, target)

    @staticmethod
    def backward(ctx, grad):
        x, target = ctx.saved_tensors
        off = x.softmax(-1) - torch.nn.functional.one_hot(target.clamp(min=0), x.shape[1])
        return grad * off, None  # also for ignored rows


@wrong("gradients", cross_entropy, LOSS)
def has_gradients_for_ignored_rows(x, target):
    return _CrossEntropy.apply(x, target)


@wrong("values", cross_entropy, {**LOSS, "sizes": {"n": "1..30", "c": "1..60"}})
def takes_the_last_class_for_ignored_rows(x, target):
    return -x.log_softmax(-1)[torch.arange(len(x)), target].sum()


def convolve_channels(x, w):
    return torch.nn.functional.conv1d(x, w)


CHANNELS = {
    "x": "float32[n, c, l]", "w": "float32[o, c, k]",
    "sizes": {"n": "1..3", "c": "1..3", "o": "1..3", "k": "1..4", "l": "k..20"},
}  # fmt: skip


@wrong("gradients", convolve_channels, CHANNELS)
def convolves_with_a_wrong_gradient_of_its_weight(x, w):
    return torch.nn.functional.conv1d(x, w.detach()) + torch.nn.functional.conv1d(x.detach(), w - w.detach()) * 2


SCATTERED = {
    "x": "float32[n, d]", "index": "int64[k] in 0..n-1", "rows": "float32[k, d]",
    "sizes": {"n": "1..9", "d": "1..9", "k": "0..30"},
}  # fmt: skip


@wrong("values", lambda x, index, rows: x.index_add(0, index, rows), SCATTERED)
def loses_rows_of_equal_indices(x, index, rows):
    return x.index_put((index,), x[index] + rows)


@wrong("mutation", lambda x, index, rows: x.index_add(0, index, rows), SCATTERED)
def scatters_into_its_input(x, index, rows):
    return x.detach().index_add_(0, index, rows.detach()).clone()


@wrong("specials", lambda x: x.sort(-1).values, MATRIX)
def sorts_nan_to_the_front(x):
    return torch.where(x.isnan(), -torch.inf, x).sort(-1).values


@wrong("unwritten", lambda x: x.tril(), {"x": "float32[n, n]", "sizes": {"n": "1..20"}})
def leaves_the_upper_part_as_it_was(x):
    result, rows = torch.empty(x.shape), torch.arange(x.shape[0])
    result[rows[:, None] >= rows] = x[rows[:, None] >= rows]
    return result
