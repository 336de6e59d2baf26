"""Fused cells that torch's LSTM and GRU call for each step on every device except the CPU.

A recurrence must not be fused through time, because each step's kernel would contain all steps before it. So a cell
stores its activations and its states, and all other operations fuse with them. The content of the workspaces is free to
choose, because only the backward cells read them. The order of the gates is torch's (aten/src/ATen/native/cuda/RNN.cu).
The module does not depend on strides in memory: the caller handles them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tinygrad.dtype import DType
from tinygrad.uop import Ops
from tinygrad.uop.ops import UOp

from ..dispatch import deferral, metadata
from ..dispatch.tensors import Spec, cast, make, read
from ..lazy.dtypes import COMPUTED, opmath
from ..runtime.stats import STATS
from .elementary import sigmoid, tanh

aten = torch.ops.aten
Results = Sequence[tuple[tuple[int, ...], UOp] | None]


def _cell(op: Any, compute: Callable[..., Results]) -> Callable[..., tuple[torch.Tensor | None, ...]]:
    """Kernel from a function on values that returns (size, value) of each contiguous result.

    Its calls wait in the queue: a cell in between would empty it at each time step, and build the graph of every
    training step anew (an LSTM of 12 steps: 116 ms, 15 ms now).
    """
    name = str(op)

    def kernel(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        index = metadata.device_index(args, kwargs)
        dtype = next(a.dtype for a in args if isinstance(a, torch.Tensor))
        STATS.native[name] += 1
        results = expressions_of(compute, [_value(a) for a in args], {k: _value(a) for k, a in kwargs.items()})
        tensors: list[torch.Tensor | None] = []
        for result in results:
            if result is None:
                tensors.append(None)
                continue
            size, elements = result
            strides = torch.empty(size, device="meta").stride()
            tensors.append(make(Spec(dtype, size, strides), elements.reshape(size), index))
        return tuple(tensors)

    return deferral.whole(kernel, name, lambda args: ())


class Template(NamedTuple):
    """The expressions of a cell over placeholders, as a list of nodes to build over other operands.

    The methods of tinygrad that build a node check shapes and dtypes, which takes five times as long as the node. All
    steps of a sequence have the same expressions.
    """

    nodes: list[tuple[Ops, DType, tuple[int, ...], Any]]  # after the operands; sources by number
    results: list[tuple[tuple[int, ...], int] | None]  # sizes, and the nodes

    @classmethod
    def of(cls, results: Results, operands: Sequence[UOp]) -> Template:
        """The template of results over these operands."""
        number = {operand: i for i, operand in enumerate(operands)}
        nodes: list[tuple[Ops, DType, tuple[int, ...], Any]] = []
        elements = [result[1] for result in results if result is not None]
        for node in UOp.sink(*elements).toposort(gate=lambda node: node not in operands):
            if node not in number and node.op is not Ops.SINK:
                nodes.append((node.op, node.dtype, tuple([number[s] for s in node.src]), node.arg))
                number[node] = len(number)
        return cls(nodes, [result and (result[0], number[result[1]]) for result in results])

    def over(self, operands: Sequence[UOp]) -> Results:
        """The same results over other operands."""
        built = list(operands)
        for op, dtype, sources, argument in self.nodes:
            built.append(UOp(op, dtype, tuple([built[i] for i in sources]), argument))
        return [result and (result[0], built[result[1]]) for result in self.results]


_templates: dict[tuple[Any, ...], Template] = {}
MOST_TEMPLATES = 256


def expressions_of(compute: Callable[..., Results], values: list[Any], named: dict[str, Any]) -> Results:
    """The results of a cell, from its template. Operands that are mere numbers have other expressions."""
    operands = [v for v in (*values, *named.values()) if isinstance(v, UOp)]
    if any(v.device is None for v in operands) or len(set(operands)) < len(operands):
        return compute(*values, **named)
    key: list[Any] = [compute, tuple(named)]
    for v in (*values, *named.values()):
        key.append((v.shape, v.dtype, v.device) if isinstance(v, UOp) else v)
    template = _templates.get(tuple(key))
    if template is None:
        if len(_templates) >= MOST_TEMPLATES:
            _templates.clear()
        stand_ins = {v: UOp.new_buffer(v.device, v.max_numel(), v.dtype).reshape(v.shape) for v in operands}
        standing = [stand_ins[v] if isinstance(v, UOp) else v for v in values]
        kept = {k: stand_ins[v] if isinstance(v, UOp) else v for k, v in named.items()}
        template = Template.of(compute(*standing, **kept), list(stand_ins.values()))
        _templates[tuple(key)] = template
    return template.over(operands)


def _value(x: Any) -> Any:
    return cast(read(x), opmath(COMPUTED[x.dtype])) if isinstance(x, torch.Tensor) else x


def _gates(gates: UOp, bias: UOp | None, count: int) -> UOp:
    """(batch, count * hidden) reshaped to (batch, count, hidden), plus its bias."""
    shape = (gates.shape[0], count, gates.shape[1] // count)
    gates = gates.reshape(shape)
    return gates if bias is None else gates + bias.reshape((1, *shape[1:]))


def _part(x: UOp, i: int) -> UOp:
    return x.shrink((None, (i, i + 1), None)).reshape((x.shape[0], x.shape[2]))


def _joined(parts: Sequence[UOp]) -> UOp:
    return parts[0].cat(*parts[1:], dim=1)


def lstm(gates: UOp, hidden: UOp, cx: UOp, bias: UOp | None = None, hidden_bias: UOp | None = None) -> Results:
    """(hy, cy, workspace); gates (batch, 4 * hidden) in the order in, forget, cell, out; the workspace: activations."""
    raw = _gates(gates, bias, 4) + _gates(hidden, hidden_bias, 4)
    is_cell = UOp.arange(4).eq(2).reshape((1, 4, 1)).expand(raw.shape)
    active = is_cell.where(tanh(raw), sigmoid(raw)).contiguous()
    i, f, g, o = (_part(active, n) for n in range(4))
    cy = (f * cx + i * g).contiguous()
    size: Any = cx.shape
    return (size, (o * tanh(cy)).contiguous()), (size, cy), ((size[0], 4 * size[1]), active)


def lstm_backward(
    grad_hy: UOp | None, grad_cy: UOp | None, cx: UOp, cy: UOp, workspace: UOp, has_bias: bool
) -> Results:
    """(gradient of the gates, of cx, of the bias)."""
    active = _gates(workspace, None, 4)
    i, f, g, o = (_part(active, n) for n in range(4))
    hy = cy.const_like(0) if grad_hy is None else grad_hy
    state = tanh(cy)
    through = hy * o * (1 - state * state)
    through = (through if grad_cy is None else through + grad_cy).contiguous()
    gates = _joined([
        through * g * i * (1 - i), through * cx * f * (1 - f), through * i * (1 - g * g), hy * state * o * (1 - o),
    ]).contiguous()  # fmt: skip
    size: Any = cx.shape
    bias = ((4 * size[1],), gates.sum((0,), dtype=gates.dtype)) if has_bias else None
    return ((size[0], 4 * size[1]), gates), (size, through * f), bias


def gru(gates: UOp, hidden: UOp, hx: UOp, bias: UOp | None = None, hidden_bias: UOp | None = None) -> Results:
    """(hy, workspace); gates (batch, 3 * hidden) in the order reset, update, new."""
    inputs, states = _gates(gates, bias, 3), _gates(hidden, hidden_bias, 3)
    both = sigmoid((inputs + states).shrink((None, (0, 2), None))).contiguous()
    reset, update, hidden_new = _part(both, 0), _part(both, 1), _part(states, 2)
    new = tanh(_part(inputs, 2) + reset * hidden_new).contiguous()
    size: Any = hx.shape
    workspace = _joined([reset, update, new, hx, hidden_new])
    return (size, (new + update * (hx - new)).contiguous()), ((size[0], 5 * size[1]), workspace)


def gru_backward(grad: UOp, workspace: UOp, has_bias: bool) -> Results:
    """(gradient of the input gates, of the hidden gates, of hx, of the input bias, of the hidden bias)."""
    reset, update, new, hx, hidden_new = (_part(_gates(workspace, None, 5), n) for n in range(5))
    by_new = grad * (1 - update) * (1 - new * new)
    by_update = grad * (hx - new) * update * (1 - update)
    by_reset = by_new * hidden_new * reset * (1 - reset)
    inputs = _joined([by_reset, by_update, by_new]).contiguous()
    hidden = _joined([by_reset, by_update, by_new * reset]).contiguous()
    batch, each = grad.shape
    wide: Any = (batch, 3 * each)  # type: ignore[operator]
    biases: list[Any] = [None, None]
    if has_bias:
        biases = [(wide[1:], side.sum((0,), dtype=side.dtype)) for side in (inputs, hidden)]
    return (wide, inputs), (wide, hidden), ((batch, each), grad * update), *biases  # type: ignore[return-value]


KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _cell(aten._thnn_fused_lstm_cell.default, lstm),
    "_thnn_fused_lstm_cell_backward_impl": _cell(aten._thnn_fused_lstm_cell_backward_impl.default, lstm_backward),
    "_thnn_fused_gru_cell": _cell(aten._thnn_fused_gru_cell.default, gru),
    "_thnn_fused_gru_cell_backward": _cell(aten._thnn_fused_gru_cell_backward.default, gru_backward),
}
