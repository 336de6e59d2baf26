"""Operators of bitsandbytes against slow versions in plain torch: `pytest docs/packages/check_bitsandbytes.py`."""

from __future__ import annotations

import math

import torch
from bitsandbytes.functional import get_4bit_type
from torch import Tensor

import conformance

ops = torch.ops.bitsandbytes
CODE = {
    **dict.fromkeys(("crash", "layouts", "reads", "repetition"), "bitsandbytes-code-strides"),
    "mixed": "bitsandbytes-code-dtype",
    "fake": "bitsandbytes-fake-strides",
}
SCALES = dict.fromkeys(("crash", "layouts", "reads", "repetition"), "bitsandbytes-absmax-strides")
SHAPE = dict.fromkeys(("shape", "fake", "symbolic", "autocast"), "bitsandbytes-one-dimension")
BATCH = dict.fromkeys(("shape", "layouts", "fake", "symbolic", "autocast"), "bitsandbytes-batch-flattened")


def by_block(flat: Tensor, blocksize: int) -> Tensor:
    """Largest magnitude of each block of a flat tensor."""
    return torch.stack([one.abs().max() for one in flat.split(blocksize)]) if len(flat) else flat.new_zeros(0)


def nearest(flat: Tensor, scales: Tensor, code: Tensor, blocksize: int) -> Tensor:
    """Index of the nearest code for each element, in units of its block's scale."""
    return (in_units(flat, scales, blocksize)[:, None] - code).abs().argmin(1)


def in_units(flat: Tensor, scales: Tensor, blocksize: int) -> Tensor:
    """Elements divided by their block's scale."""
    return flat / scales.clamp(min=1e-38).repeat_interleave(blocksize)[: len(flat)]


def test_quantize_blockwise():
    def quantize(A, code, blocksize):
        if not A.numel():
            raise ValueError("no elements")
        flat = A.reshape(-1).float()
        scales = by_block(flat, blocksize)
        return nearest(flat, scales, code, blocksize).to(torch.uint8).view(A.shape), scales

    def distance(quantized, A, code, blocksize):
        index, scales = quantized
        scaled = in_units(A.reshape(-1).float(), scales, blocksize)
        return (scaled - code[index.reshape(-1).long()]).abs(), scales

    def operator(A, code, blocksize):
        return distance(ops.quantize_blockwise(A, code, blocksize), A, code, blocksize)

    def reference(A, code, blocksize):
        return distance(quantize(A, code, blocksize), A, code, blocksize)

    inputs = {
        "A": "float32/bfloat16/float16[n, m]",
        "code": "float32[256] in -1..1 sorted",
        "blocksize": "64 | 256 | 7",
        "sizes": {"n": "1..9", "m": "1..300"},
    }
    # The operator looks up a code by 16 bits of the scaled element, which is in -1..1. One step of 16 bits is
    # 2 / 2**16, and its code may be farther than the nearest one by that step.
    known = CODE | dict.fromkeys(("specials", "values", "blocks"), "compared below")
    conformance.check(ops.quantize_blockwise, reference=quantize, inputs=inputs, exclude=known)
    checks = ["values", "blocks"]
    conformance.check(operator, reference=reference, inputs=inputs, checks=checks, rtol=0.0, atol=2 / 2**16)


def test_dequantize_blockwise():
    def dequantize(A, absmax, code, blocksize, dtype):
        scales = absmax.repeat_interleave(blocksize)[: A.numel()]
        return (code[A.reshape(-1).long()] * scales).view(A.shape).to(dtype)

    for dtype in (torch.float32, torch.bfloat16):
        conformance.check(
            ops.dequantize_blockwise,
            reference=dequantize,
            inputs={
                "A": "uint8[64*n]",
                "absmax": "float32[n] in 0..4",
                "code": "float32[256] in -1..1 sorted",
                "blocksize": 64,
                "dtype": dtype,
                "sizes": {"n": "1..65"},
            },
            exclude=CODE,
        )


def unpacked(A: Tensor, quant_type: str) -> Tensor:
    codes = A.reshape(-1).long()
    return get_4bit_type(quant_type, "cpu")[torch.stack([codes >> 4, codes & 15], 1).reshape(-1)]


def test_quantize_4bit():
    def quantize(A, blocksize, quant_type, quant_storage):
        if not A.numel():
            raise ValueError("no elements")
        flat = A.reshape(-1).float()
        scales = by_block(flat, blocksize)
        at = nearest(flat, scales, get_4bit_type(quant_type, "cpu"), blocksize)
        zero = int(get_4bit_type(quant_type, "cpu").abs().argmin())
        at = torch.nn.functional.pad(at, (0, len(at) % 2), value=zero).view(-1, 2)
        return (at[:, :1] << 4 | at[:, 1:]).to(torch.uint8), scales

    conformance.check(
        ops.quantize_4bit,
        reference=quantize,
        inputs={
            "A": "float32/bfloat16/float16[n, m]",
            "blocksize": "64 | 256",
            "quant_type": "'nf4'",  # fp4 has two codes of zero
            "quant_storage": torch.uint8,
            "sizes": {"n": "1..9", "m": "1..300"},
        },
        exclude={"specials": "the nearest code of nan, and two codes of zero"},
    )


def test_dequantize_4bit():
    def dequantize(A, absmax, blocksize, quant_type, shape, dtype):
        scales = absmax.repeat_interleave(blocksize)[: math.prod(shape)]
        return (unpacked(A, quant_type)[: math.prod(shape)] * scales).view(shape).to(dtype)

    for dtype in (torch.float32, torch.bfloat16):
        conformance.check(
            ops.dequantize_4bit,
            reference=dequantize,
            inputs={
                "A": "uint8[32*n, 1]",
                "absmax": "float32[n] in 0..4",
                "blocksize": 64,
                "quant_type": '"nf4" | "fp4"',
                "shape": "[n, 64] | [64*n] | [2*n, 4, 8]",
                "dtype": dtype,
                "sizes": {"n": "1..65"},
            },
            exclude=SCALES | SHAPE,
        )


def test_gemv_4bit():
    def gemv(A, B, shapeB, absmax, code, blocksize):
        weight = (unpacked(B, "fp4" if code[1] > 0 else "nf4") * absmax.repeat_interleave(blocksize)).view(shapeB)
        return torch.nn.functional.linear(A, weight.to(A.dtype))

    def operator(A, B, shapeB, absmax, blocksize):
        return ops.gemv_4bit(A, B, shapeB, absmax, get_4bit_type("nf4", "cpu"), blocksize)

    def reference(A, B, shapeB, absmax, blocksize):
        return gemv(A, B, shapeB, absmax, get_4bit_type("nf4", "cpu"), blocksize)

    conformance.check(
        operator,
        reference=reference,
        inputs={
            "A": "float32[1, 64*k] | bfloat16[1, 64*k]",
            "B": "uint8[32*n*k, 1]",
            "shapeB": "[n, 64*k]",
            "absmax": "float32[n*k] in 0..1",
            "blocksize": 64,
            "sizes": {"n": "16..64 step 16", "k": "1..5"},
        },
        exclude={**SCALES, "gradients": "an operator for inference", "mixed": "it computes in bfloat16"},
    )


def test_int8_linear_matmul():
    def matmul(A, B):
        if A.dtype != torch.int8 or B.dtype != torch.int8:
            raise ValueError("int8")
        return (A.long() @ B.long().t()).to(torch.int32)

    conformance.check(
        ops.int8_linear_matmul,
        reference=matmul,
        inputs={
            "A": "int8[n, 2*k] in 100..127 | int8[b, n, 2*k]",
            "B": "int8[m, 2*k] in 100..127 | int8[m, 2*k]",
            "sizes": {"b": "1..3", "n": "1..9", "m": "1..9", "k": "1..1025"},
        },
    )


def dequantized(A, row_stats, col_stats, dtype=None, bias=None):
    # 1 / 127**2 is 6.2000124e-05; the package's constant is bitsandbytes-dequant-constant.
    made = A.double() * row_stats.double().view(A.shape[:-1])[..., None] * col_stats.double() * 6.200124e-05
    return (made if bias is None else made + bias).to(dtype or torch.float16)


def test_int8_mm_dequant():
    conformance.check(
        ops.int8_mm_dequant,
        reference=dequantized,
        inputs={
            "A": "int32[n, m] in -9999..9999 | int32[b, n, m] in -9999..9999",
            "row_stats": "float32[n] in 0..4 | float32[b*n] in 0..4",
            "col_stats": "float32[m] in 0..4",
            "dtype": torch.float32,
            "bias": "None | None | float32[m] | float32[m]",
            "sizes": {"b": "1..3", "n": "1..33", "m": "1..33"},
        },
        exclude=BATCH,
    )


def test_int8_scaled_mm():
    def scaled(A, B, row_stats, col_stats, bias=None, dtype=None):
        return dequantized((A.long() @ B.long().t()), row_stats, col_stats, dtype, bias)

    conformance.check(
        ops.int8_scaled_mm,
        reference=scaled,
        inputs={
            "A": "int8[n, k] | int8[b, n, k]",
            "B": "int8[m, k]",
            "row_stats": "float32[n] in 0..4 | float32[b*n] in 0..4",
            "col_stats": "float32[m] in 0..4",
            "bias": "None | None | float32[m] | float32[m]",
            "dtype": torch.float32,
            "sizes": {"b": "1..3", "n": "1..33", "m": "1..33", "k": "1..65"},
        },
        exclude=BATCH,
    )


def test_int8_vectorwise_quant():
    def quantize(A, threshold=0.0):
        if not A.numel() or A.dim() != 2:
            raise ValueError("rows of elements")
        far = A.abs() >= threshold if threshold else torch.zeros_like(A, dtype=torch.bool)
        kept = A.masked_fill(far, 0)
        scales = kept.abs().amax(1).float()
        made = torch.round(kept * (127 / scales[:, None])).nan_to_num().to(torch.int8)
        columns = far.any(0).nonzero()[:, 0]
        if len(A) > 1:
            made[:, columns] = 0
        return made, scales, columns if threshold else None

    conformance.check(
        ops.int8_vectorwise_quant,
        reference=quantize,
        inputs={"A": "float32[n, m]", "threshold": "0.0 | 1.5", "sizes": {"n": "1..33", "m": "1..65"}},
        exclude={"fake": "bitsandbytes-fake-strides"},
    )


def test_int8_vectorwise_dequant():
    def dequantize(A, stats):
        return A * stats[:, None] / 127

    conformance.check(
        ops.int8_vectorwise_dequant,
        reference=dequantize,
        inputs={"A": "int8[n, m]", "stats": "float32[n] in 0..4", "sizes": {"n": "1..33", "m": "1..65"}},
    )
