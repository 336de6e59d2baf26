"""Kernels of flash-linear-attention against torch: `TRITON_INTERPRET=1 pytest docs/packages/check_fla.py`."""

from __future__ import annotations

import torch
from torch.nn import functional as nn
from triton.runtime.autotuner import Autotuner

import conformance


def first(self, *args, **kwargs):
    """Run the first configuration. The interpreter has no driver that could measure them."""
    self.nargs = dict(zip(self.arg_names, args))
    return self.fn.run(*args, **{**kwargs, **self.configs[0].all_kwargs()})


Autotuner.run = first

from fla.modules import activations  # noqa: E402
from fla.modules.l2norm import l2_norm  # noqa: E402
from fla.modules.layernorm import layer_norm, rms_norm  # noqa: E402
from fla.modules.rotary import rotary_embedding  # noqa: E402
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum  # noqa: E402
from fla.ops.utils.pooling import mean_pooling  # noqa: E402
from fla.ops.utils.softmax import softmax_fwd  # noqa: E402

EXCLUDE = dict.fromkeys(("mixed", "autocast"), "Triton's interpreter does not compute in bfloat16")
ROWS = {"n": "1..5", "m": "1..65"}
TOKENS = {"b": "1..2", "t": "1..17", "h": "1..3", "d": "1..17"}


INTERNAL = dict.fromkeys(("gradients", "vmap"), "a part of operators that have a derivative")

SOFTMAX = dict.fromkeys(("crash", "layouts", "reads", "repetition"), "fla-softmax-strides")


def same(operator, reference, inputs, exclude=EXCLUDE, **more):
    conformance.check(operator, reference=reference, inputs=inputs, exclude=exclude, **more)


def test_l2_norm():
    def l2(x):
        return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    same(l2_norm, l2, {"x": "float32[n, m] | float32[n, 3, m]", "sizes": ROWS})


def test_layer_norm():
    def normed(x, weight, bias):
        return nn.layer_norm(x, weight.shape, weight, bias, 1e-5)

    same(
        layer_norm,
        normed,
        {"x": "float32[n, m] | float32[n, 3, m]", "weight": "float32[m]", "bias": "float32[m]", "sizes": ROWS},
    )


def test_rms_norm():
    def normed(x, weight, bias):
        return nn.rms_norm(x, weight.shape, weight, 1e-5) + (0 if bias is None else bias)

    same(
        rms_norm,
        normed,
        {
            "x": "float32[n, m] | float32[n, 3, m]",
            "weight": "float32[m]",
            "bias": "None | None | float32[m] | float32[m]",
            "sizes": ROWS,
        },
    )


def test_swish():
    def swish(x):
        return activations.swish(x)

    same(swish, nn.silu, {"x": "float32[n, m]", "sizes": ROWS})


def test_logsigmoid():
    def logsigmoid(x, temperature=1.0):
        return nn.logsigmoid(x) / temperature

    same(activations.logsigmoid, logsigmoid, {"x": "float32[n, m]", "temperature": "1.0 | 2.0", "sizes": ROWS})


def test_swiglu():
    def swiglu(x, y):
        return nn.silu(x) * y

    def operator(x, y):
        return activations.swiglu(x, y)

    same(operator, swiglu, {"x": "float32[n, m]", "y": "float32[n, m]", "sizes": ROWS})


def test_chunk_local_cumsum():
    def sums(g, chunk_size, reverse=False):
        if chunk_size & (chunk_size - 1):
            raise ValueError("a power of 2")
        parts = g.split(chunk_size, 1)
        return torch.cat([one.flip(1).cumsum(1).flip(1) if reverse else one.cumsum(1) for one in parts], 1)

    same(
        chunk_local_cumsum,
        sums,
        {
            "g": "float32[b, t, h] | float32[b, t, h] | float32[b, t, h, d] | float32[b, t, h, d]",
            "chunk_size": "4 | 16",
            "reverse": "False | True",
            "sizes": TOKENS,
        },
        EXCLUDE | INTERNAL,
    )


def test_chunk_global_cumsum():
    def sums(s, reverse=False):
        return s.flip(1).cumsum(1).flip(1) if reverse else s.cumsum(1)

    same(
        chunk_global_cumsum,
        sums,
        {
            "s": "float32[b, t, h] | float32[b, t, h] | float32[b, t, h, d] | float32[b, t, h, d]",
            "reverse": "False | True",
            "sizes": TOKENS,
        },
        EXCLUDE | INTERNAL,
    )


def test_mean_pooling():
    def pooled(x, chunk_size):
        return torch.stack([one.mean(1) for one in x.split(chunk_size, 1)], 1)

    same(mean_pooling, pooled, {"x": "float32[b, t, h, d]", "chunk_size": "4 | 16", "sizes": TOKENS})


def test_softmax():
    def softmax(x):
        return x.softmax(-1)

    same(softmax_fwd, softmax, {"x": "float32[n, m]", "sizes": ROWS}, EXCLUDE | INTERNAL | SOFTMAX)


def test_rotary():
    def rotary(x, cos, sin):
        a, b = x.chunk(2, -1)
        cos, sin = cos.detach()[:, None], sin.detach()[:, None]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    same(
        rotary_embedding,
        rotary,
        {"x": "float32[b, t, h, 2*d]", "cos": "float32[t, d]", "sin": "float32[t, d]", "sizes": TOKENS},
    )
