"""Operators that torch CPU lacks are judged by their formulas, and writes that no schema declares are judged too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import conformance
from conformance.sources.trace import references

CELLS = {"lstm": (nn.LSTMCell, nn.LSTM), "gru": (nn.GRUCell, nn.GRU)}


@contextlib.contextmanager
def replaced_on_tiny(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace the kernel of an aten operator on tiny inside the block. `make` gets the right kernel."""
    import conformance.backend  # noqa: F401 - registers the kernels

    kernel = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")
    library = torch.library.Library("aten", "IMPL")

    def run(keys: Any, *args: Any) -> Any:
        return make(lambda *given: kernel.call_boxed(keys, *given))(*args)

    library.impl(name, run, "PrivateUse1", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


def traced_step(module: nn.Module) -> conformance.sources.trace.api.Trace:
    """Return the trace of a forward and a backward pass of a recurrent layer on tiny."""
    module = module.to("tiny")
    with conformance.trace() as trace:
        module(torch.linspace(-1, 1, 24).view(3, 2, 4).to("tiny"))[0].square().mean().backward()
    return trace


def gates_of(cell: nn.Module, x: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
    """Return the gates of the inputs and of the hidden state, without their biases, which require gradients."""
    return [(x @ cell.weight_ih.T).detach().requires_grad_(), (h @ cell.weight_hh.T).detach().requires_grad_()]


@pytest.mark.parametrize("kind", CELLS)
def test_formulas_agree_with_torchs_cells(kind: str) -> None:
    """Results and gradients are those of `torch.nn.LSTMCell` and `GRUCell`, with biases, in float64."""
    torch.manual_seed(0)
    cell = CELLS[kind][0](3, 5).double()
    x, h, c = (torch.randn(2, size, dtype=torch.float64, requires_grad=True) for size in (3, 5, 5))
    gates, biases = gates_of(cell, x, h), (cell.bias_ih, cell.bias_hh)
    if kind == "lstm":
        want = cell(x, (h, c))
        *got, workspace = references.fused_lstm_cell(*gates, c, *biases)
    else:
        want = (cell(x, h),)
        *got, workspace = references.fused_gru_cell(*gates, h, *biases)
    torch.testing.assert_close(got, list(want))
    upstream = [torch.randn_like(one) for one in got]
    state = c if kind == "lstm" else h
    inputs = [*gates, state] if kind == "gru" else [gates[0], state]
    right = torch.autograd.grad(got, [*inputs, cell.bias_ih], upstream)
    with torch.no_grad():
        if kind == "lstm":
            mine = references.fused_lstm_cell_backward(*upstream, c, got[1], workspace, True)
        else:
            mine = references.fused_gru_cell_backward(*upstream, workspace, True)[:4]
    torch.testing.assert_close(tuple(mine), right)


@pytest.mark.tiny
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_right_recurrent_layers_have_a_verdict(kind: str, bias: bool) -> None:
    """All calls of a training step are judged, fused cells and their backward cells included."""
    trace = traced_step(CELLS[kind][1](4, 8, bias=bias, bidirectional=True))
    assert not trace.faults and not trace.unjudged_calls
    cells = [tally for (name, _), tally in trace.mode.tallies.items() if "_thnn_fused" in name]
    assert [tally.judged for tally in cells] == [6, 6]


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("_thnn_fused_lstm_cell", "forward"),
        ("_thnn_fused_lstm_cell_backward_impl", "backward"),
        ("_thnn_fused_gru_cell", "forward"),
        ("_thnn_fused_gru_cell_backward", "backward"),
    ],
)
def test_wrong_fused_cell_is_found(name: str, phase: str) -> None:
    """A cell whose first result is twice its value is the one wrong operator. Regression test: such calls were not
    judged, and the verdict was that no operator is wrong."""

    def doubled(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            first, *others = kernel(*args)
            return (first * 2, *others)

        return run

    with replaced_on_tiny(name, doubled):
        trace = traced_step(CELLS["lstm" if "lstm" in name else "gru"][1](4, 8))
    assert [(fault.name, fault.phase) for fault in trace.faults] == [(f"aten.{name}.default", phase)]
    assert "torch CPU has no kernel" in trace.faults[0].script


@pytest.mark.tiny
def test_workspace_of_another_form_leaves_no_verdict() -> None:
    """A device may store what it likes for its backward cell. That cell cannot be judged alone, and the trace says so
    instead of passing."""

    def reordered(kernel: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (*kernel(*args)[:2], kernel(*args)[2].flip(1))

    def restored(kernel: Callable[..., Any]) -> Callable[..., Any]:
        return lambda hy, cy, cx, state, workspace, bias: kernel(hy, cy, cx, state, workspace.flip(1), bias)

    with (
        replaced_on_tiny("_thnn_fused_lstm_cell", reordered),
        replaced_on_tiny("_thnn_fused_lstm_cell_backward_impl", restored),
    ):
        trace = traced_step(nn.LSTM(4, 8))
    assert not trace.faults
    assert trace.unjudged_calls == {"aten._thnn_fused_lstm_cell_backward_impl.default": 3}
    assert "no verdict, since 3 of " in str(trace)
    assert "aten._thnn_fused_lstm_cell.default of the device stores a workspace of another form" in str(trace)


@pytest.mark.tiny
def test_undeclared_write_is_judged() -> None:
    """`native_batch_norm` writes running statistics that its schema does not declare as written. Regression test: the
    float64 reference began from statistics that torch CPU had already changed, which explained any difference."""

    def halved(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            result = kernel(*args)
            args[4].mul_(0.5)
            return result

        return run

    net = nn.BatchNorm1d(4).to("tiny")
    with replaced_on_tiny("native_batch_norm", halved), conformance.trace() as trace:
        net(torch.arange(32.0).reshape(8, 4).to("tiny"))
    (fault,) = trace.faults
    assert (fault.name, fault.mismatch.where) == ("aten.native_batch_norm.default", "running_var")
    with conformance.trace() as trace:
        net(torch.arange(32.0).reshape(8, 4).to("tiny"))
    assert not trace.faults
