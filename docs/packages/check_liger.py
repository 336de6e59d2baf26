"""Kernels of Liger against torch: `TRITON_INTERPRET=1 pytest docs/packages/check_liger.py`.

Triton 3.9's interpreter is slow, so the sizes are small.
"""

from __future__ import annotations

import liger_kernel.transformers.functional as liger
import numpy as np
import torch
import triton
from liger_kernel.ops import geglu, group_norm, layer_norm, rms_norm
from torch.nn import functional as nn
from triton import language
from triton.runtime import interpreter

import conformance

usual = interpreter._implicit_cvt


def converted(argument):
    """Pass a Python number as a compiled kernel gets it. Triton's interpreter passes floats unchanged."""
    if type(argument) is not float:
        return usual(argument)
    handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), language.float32)
    return language.tensor(handle, language.float32)


@triton.jit
def tanh(x):
    """The function of `libdevice`, which the interpreter lacks."""
    return 2 * language.sigmoid(2 * x) - 1


@triton.jit
def rsqrt(x):
    """The same."""
    return 1 / language.sqrt(x)


interpreter._implicit_cvt = converted
geglu.tanh = tanh
for module in (group_norm, layer_norm, rms_norm):
    module.rsqrt = rsqrt

ROWS = {"n": "1..5", "m": "1..65"}
EXCLUDE = dict.fromkeys(("mixed", "autocast"), "Triton's interpreter does not compute in bfloat16")


def same(operator, reference, inputs, known=None, **more):
    conformance.check(operator, reference=reference, inputs=inputs, exclude=EXCLUDE | (known or {}), **more)


def test_rms_norm():
    def reference(X, W, eps, offset=0.0, casting_mode="llama", in_place=False):
        return nn.rms_norm(X, W.shape, W + offset, eps)

    same(
        liger.liger_rms_norm,
        reference,
        {
            "X": "float32[n, m] | float32[n, 3, m]",
            "W": "float32[m]",
            "eps": 1e-5,
            "offset": "0.0 | 0.0 | 1.0 | 1.0",
            "casting_mode": '"llama" | "gemma" | "none"',
            "in_place": False,
            "sizes": ROWS,
        },
    )


def test_layer_norm():
    def reference(X, W, B, eps):
        return nn.layer_norm(X, W.shape, W, B, eps)

    same(
        liger.liger_layer_norm,
        reference,
        {"X": "float32[n, m] | float32[n, 3, m]", "W": "float32[m]", "B": "float32[m]", "eps": 1e-5, "sizes": ROWS},
    )


def test_group_norm():
    def reference(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
        if num_channels != X.size(1):
            raise ValueError("num_channels is the size of dimension 1")
        return nn.group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)

    same(
        liger.liger_group_norm,
        reference,
        {
            "X": "float32[n, 2*g, m]",
            "affine_scaling_weight": "float32[2*g]",
            "affine_shifting_bias": "float32[2*g]",
            "num_channels": "int in 2*g..2*g",
            "num_groups": "int in g..g",
            "eps": 1e-5,
            "sizes": {"n": "1..3", "g": "1..3", "m": "1..65"},
        },
    )


def test_softmax():
    def softmax(x):
        return x.softmax(-1)

    same(liger.liger_softmax, softmax, {"x": "float32[n, m] | float32[n, 3, m]", "sizes": ROWS})


def test_sparsemax():
    def sparsemax(input, dim=-1):
        ordered = input.sort(dim, descending=True).values.movedim(dim, -1)
        counts = torch.arange(1, ordered.size(-1) + 1)
        sums = ordered.cumsum(-1) - 1
        support = (counts * ordered > sums).sum(-1, keepdim=True)
        tau = sums.gather(-1, support - 1) / support
        return (input.movedim(dim, -1) - tau).clamp(min=0).movedim(-1, dim)

    same(
        liger.liger_sparsemax,
        sparsemax,
        {"input": "float32[n, m] | float32[n, 3, m]", "dim": "-1 | 0 | 1", "sizes": {"n": "1..5", "m": "1..33"}},
    )


def test_swiglu():
    def swiglu(a, b):
        return nn.silu(a) * b

    same(liger.liger_swiglu, swiglu, {"a": "float32[n, m]", "b": "float32[n, m]", "sizes": ROWS})


def test_geglu():
    def reference(a, b):
        return nn.gelu(a, approximate="tanh") * b

    same(liger.liger_geglu, reference, {"a": "float32[n, m]", "b": "float32[n, m]", "sizes": ROWS})


def test_relu_squared():
    def relu_squared(x):
        return x.relu() ** 2

    same(
        liger.liger_relu_squared,
        relu_squared,
        {"x": "float32[n, m]", "sizes": ROWS},
        {"specials": "liger-relu-squared-nan"},
    )


def test_cross_entropy():
    def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        return nn.cross_entropy(
            input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )

    same(
        liger.liger_cross_entropy,
        cross_entropy,
        {
            "input": "float32[n, m]",
            "target": "int64[n] in 0..m-1",
            "weight": "None | float32[m] in 1..2",
            "ignore_index": "-100 | 0",
            "reduction": '"mean" | "sum" | "none"',
            "label_smoothing": "0.0 | 0.1",
            "sizes": ROWS,
        },
        {"gradients": "liger-cross-entropy-strides", "mutation": "liger-ignored-rows"},
    )


def test_fused_linear_cross_entropy():
    def fused(input, weight, target, bias=None, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        return nn.cross_entropy(
            nn.linear(input, weight, bias),
            target,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    same(
        liger.liger_fused_linear_cross_entropy,
        fused,
        {
            "input": "float32[n, k]",
            "weight": "float32[m, k]",
            "target": "int64[n] in 0..m-1",
            "bias": "None | float32[m]",
            "ignore_index": "-100 | 0",
            "label_smoothing": "0.0 | 0.1",
            "reduction": '"mean" | "sum"',
            "sizes": {"n": "1..5", "k": "1..9", "m": "1..65"},
        },
    )


def test_kl_div():
    def kl_div(input, target, reduction="mean", log_target=False):
        return nn.kl_div(input, target.detach(), reduction=reduction, log_target=log_target)

    same(
        liger.liger_kl_div,
        kl_div,
        {
            "input": "float32[n, m] in -5..0",
            "target": "float32[n, m] in 0..1",
            "log_target": "False | True",
            "reduction": '"batchmean" | "mean" | "sum" | "none"',
            "sizes": ROWS,
        },
    )


def test_jsd():
    def jsd(input, target, beta=0.5):
        target = target.detach()
        q, p = input.exp(), target.exp()
        if beta == 0:
            return nn.kl_div(input, target, reduction="batchmean", log_target=True)
        if beta == 1:
            return nn.kl_div(target, input, reduction="batchmean", log_target=True)
        mixed = (beta * p + (1 - beta) * q).log()
        parts = [nn.kl_div(mixed, one, reduction="batchmean", log_target=True) for one in (target, input)]
        return beta * parts[0] + (1 - beta) * parts[1]

    same(
        liger.liger_jsd,
        jsd,
        {
            "input": "float32[n, m] in -5..0",
            "target": "float32[n, m] in -5..0",
            "beta": "0.0 | 0.1 | 0.5 | 1.0",
            "sizes": ROWS,
        },
    )


def test_tvd():
    def tvd(input, target, reduction="mean"):
        each = 0.5 * (input - target.detach()).abs()
        if input.shape != target.shape:
            raise ValueError("one shape")
        each_row = each.sum() / len(each)
        return {"mean": each.mean(), "batchmean": each_row, "sum": each.sum(), "none": each}[reduction]

    same(
        liger.liger_tvd,
        tvd,
        {
            "input": "float32[n, m] in 0..1",
            "target": "float32[n, m] in 0..1",
            "reduction": '"mean" | "batchmean" | "sum" | "none"',
            "sizes": ROWS,
        },
    )


def rotated(x):
    return torch.cat((-x[..., x.size(-1) // 2 :], x[..., : x.size(-1) // 2]), -1)


def rope(q, k, cos, sin):
    cos, sin = (torch.cat((one.detach(),) * 2, -1)[:, None] for one in (cos, sin))
    return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


def rope_of_halves(q, k, cos, sin):
    return liger.liger_rope(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def test_rope():
    # One token in a batch gives wrong values: liger-rope-one-token.
    inputs = {
        "q": "float32[b, h, s, 2*d]",
        "k": "float32[b, g, s, 2*d]",
        "cos": "float32[1, s, d]",
        "sin": "float32[1, s, d]",
        "sizes": {"b": "1..2", "h": "2..3", "g": "2..3", "s": "2..5", "d": "1..33"},
    }
    known = dict.fromkeys(("aliasing", "mutation", "cotangents", "repetition"), "liger-rope-in-place")
    same(rope_of_halves, rope, inputs, known)
