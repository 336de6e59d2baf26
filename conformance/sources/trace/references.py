"""Reference answers for operators that torch CPU lacks, in operators that it has.

For example, `torch.nn.LSTM` calls the fused cell `aten._thnn_fused_lstm_cell` on every device except the CPU, so torch
CPU has no answer to compare with. A trace calls `fused_lstm_cell` below instead.

The formulas are those of `torch.nn.LSTMCell` and `torch.nn.GRUCell`; the order of the gates and the content of the
workspaces are those of torch's CUDA cells (aten/src/ATen/native/cuda/RNN.cu). Only the backward cell reads a workspace,
so a device is free to store something else there. Then its backward cells cannot be judged one by one.

`torch.nn.functional.scaled_dot_product_attention` calls a fused kernel of the device, if it has one. Only the first
result is defined; the others are what the device's backward kernel needs, which computes the same gradients from any
form of them. An operator without a formula here is compared with torch's own decomposition, if there is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.engine.kernel_tables import KernelKind, kernel_of
from conformance.standalone.torch_compat import decompositions


def fused_lstm_cell(
    gates: Tensor, hidden: Tensor, cx: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (hy, cy, workspace): the gates of the inputs and of the hidden state have the shape (batch, 4 * hidden),
    in the order in, forget, cell, out."""
    i, f, g, o = add_biases(gates + hidden, bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def fused_lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the gates, of cx, and of the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    through = grad_hy * o * (1 - cy.tanh() ** 2)
    through = through if grad_cy is None else through + grad_cy
    by_gate = through * g * i * (1 - i), through * cx * f * (1 - f), through * i * (1 - g * g)
    gates = torch.cat([*by_gate, grad_hy * cy.tanh() * o * (1 - o)], 1)
    return gates, through * f, gates.sum(0) if has_bias else None


def fused_gru_cell(
    gates: Tensor, hidden: Tensor, hx: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (hy, workspace): the gates have the shape (batch, 3 * hidden), in the order reset, update, new."""
    (r, z, n), (hr, hz, hn) = add_biases(gates, bias).chunk(3, 1), add_biases(hidden, hidden_bias).chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    new = (n + r * hn).tanh()
    return new + z * (hx - new), torch.cat([r, z, new, hx, hn], 1)


def fused_gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of the gates of the inputs, of those of the hidden state, of hx, and of both biases."""
    r, z, new, hx, hn = workspace.chunk(5, 1)
    by_new = grad * (1 - z) * (1 - new * new)
    by_update, by_reset = grad * (hx - new) * z * (1 - z), by_new * hn * r * (1 - r)
    gates, hidden = torch.cat([by_reset, by_update, by_new], 1), torch.cat([by_reset, by_update, by_new * r], 1)
    biases = (gates.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return gates, hidden, grad * z, *biases


def add_biases(gates: Tensor, *biases: Tensor | None) -> Tensor:
    """Return the gates with those biases that are given, each of the shape (gates,)."""
    return sum((bias for bias in biases if bias is not None), gates)


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the output and the probabilities. Several heads of the query may share a head of the key."""
    grouped = query.shape[-3] != key.shape[-3]
    return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        query, key, value, bias, 0.0, is_causal, scale=scale, enable_gqa=grouped
    )


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of query, key, value and bias. They are computed from `out`, as in a fused kernel, so that
    an error of the forward kernel does not reach this one."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads = query.shape[-3] // key.shape[-3]
    keys, values = (tensor.repeat_interleave(heads, -3) for tensor in (key, value))
    _, weights = attention(query, keys, values, bias, is_causal, scale)
    by_score = weights * (grad @ values.mT - (grad * out).sum(-1, keepdim=True))
    by_key, by_value = (
        one.unflatten(-3, (-1, heads)).sum(-3) for one in (by_score.mT @ query * scale, weights.mT @ grad)
    )
    return by_score @ keys * scale, by_key, by_value, None if bias is None else by_score.sum_to_size(bias.shape)


def attention_by_name(func: Any, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """Return the results of a fused attention operator, or of its backward operator. They have other orders of the same
    arguments."""
    names = (argument.name for argument in func._schema.arguments)
    given = {"attn_bias": None, "is_causal": False, "scale": None, **dict(zip(names, args)), **kwargs}
    shared = given["query"], given["key"], given["value"], given["attn_bias"]
    how = given["is_causal"], given["scale"]
    if "out" not in given:
        return attention(*shared, *how)
    if given["dropout_p"]:
        raise NotImplementedError("the device alone knows which weights its dropout removed")
    grad = given["grad_out"] if "grad_out" in given else given["grad_out_"]
    return attention_backward(grad, *shared, given["out"], *how)[: len(func._schema.returns)]


@functools.cache
def reference_of(func: Any) -> Callable[..., Any]:
    """Return the function that computes torch CPU's answer: the operator. If torch CPU lacks it, its formula or torch's
    decomposition into other operators; without both, the operator, which raises."""
    if func in REFERENCES:
        return REFERENCES[func]
    lacks = kernel_of(func.name(), "CPU") in (None, KernelKind.NONE)
    return (decompositions().get(func) if lacks else None) or func  # type: ignore[no-any-return]


aten = torch.ops.aten
REFERENCES: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: fused_lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: fused_lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: fused_gru_cell,
    aten._thnn_fused_gru_cell_backward.default: fused_gru_cell_backward,
}
ATTENTION = [
    getattr(aten, f"_scaled_dot_product_{kind}").default
    for kind in ("fused_attention_overrideable", "flash_attention", "efficient_attention", "cudnn_attention")
]
"""Fused kernels of attention, each of some devices. Each has a backward operator."""
for one in ATTENTION:
    back = getattr(aten, f"{one.overloadpacket.__name__}_backward").default
    REFERENCES |= {each: functools.partial(attention_by_name, each) for each in (one, back)}
WORKSPACE = {aten._thnn_fused_lstm_cell.default: 2, aten._thnn_fused_gru_cell.default: 1, **dict.fromkeys(ATTENTION, 1)}
"""By operator: the place of the workspace among its results, whose content a device chooses."""
READS_WORKSPACE = {
    aten._thnn_fused_lstm_cell_backward_impl.default: aten._thnn_fused_lstm_cell.default,
    aten._thnn_fused_gru_cell_backward.default: aten._thnn_fused_gru_cell.default,
}
"""By operator that reads a workspace: the one that made it."""
