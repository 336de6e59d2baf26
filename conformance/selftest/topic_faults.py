"""Faults to plant in calls of whole topics: quantized views, `out=` that is an operand, recurrent cells.

Each op is right on what op_db's samples give it. `cumsum(a, 0)` is right, and `cumsum(a, 0, out=a)` reads what it has
written; `gru_cell` is right, and takes a state that does not fit.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.program.steps.layouts import dense, geometry
from conformance.selftest.faults import FUNCTION, Fault, InterceptedCall

CELLS = "gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell"


def _reads_in_order_of_memory(call: InterceptedCall) -> Any:
    t = call.first
    result = call.run()
    if sorted(t.stride()) == sorted(dense(t.size())) and not t.is_contiguous():
        result.copy_(call.having(0, t.as_strided(t.size(), dense(t.size()))))
    return result


def _first_scale(call: InterceptedCall) -> Any:
    t, scale = call.args[:2]
    return call.having(1, scale[:1].expand_as(scale)) if t.dim() and t.stride(-1) != 1 else call.run()


def _into_itself(call: InterceptedCall) -> bool:
    out = call.kwargs.get("out")
    return isinstance(out, torch.Tensor) and geometry(out) == geometry(call.first)


def _reads_what_it_wrote(call: InterceptedCall) -> Any:
    if _into_itself(call):
        call.run()
    return call.run()


def _accepts_itself(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError as error:
        if "memory" not in str(error) or not _into_itself(call):
            raise
        return call.having(0, call.first.clone())


def _keeps_the_state(call: InterceptedCall) -> Any:
    try:
        return call.run()
    except RuntimeError:
        return call.args[1]


TOPIC_FAULTS: dict[str, Fault] = {
    "fake_quantize reads permuted memory in order": Fault(
        "fake_quantize_per_tensor_affine", _reads_in_order_of_memory, "a kernel for contiguous inputs", FUNCTION
    ),
    "fake_quantize of a view has one scale": Fault(
        "fake_quantize_per_channel_affine", _first_scale, "a fast path for contiguous inputs", FUNCTION
    ),
    "a scan into itself reads what it wrote": Fault("cumsum cumprod", _reads_what_it_wrote, "an out= that is an input"),
    "scatter_add into itself adds twice": Fault(
        "scatter_add index_add", _reads_what_it_wrote, "an out= that is an input"
    ),
    "gather into itself is accepted": Fault("gather", _accepts_itself, "a check that a kernel lacks"),
    "a cell accepts a state that does not fit": Fault(CELLS, _keeps_the_state, "a check that a kernel lacks", FUNCTION),
}
"""Faults of calls that devices get wrong and op_db's samples do not make."""
