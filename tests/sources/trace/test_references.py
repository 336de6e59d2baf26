"""Operators that torch CPU lacks are judged by their formulas, and writes that no schema declares are judged too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import conformance
from conformance.sources.trace import references
from tests.sources.trace.planting import planted

CELLS = {"lstm": (nn.LSTMCell, nn.LSTM), "gru": (nn.GRUCell, nn.GRU)}


@contextlib.contextmanager
def kernel_on_tiny(name: str, run: Callable[..., Any]) -> Iterator[None]:
    """Give tiny a kernel of an aten operator inside the block. It gets the dispatch keys, then the arguments."""
    import conformance.backend  # noqa: F401 - registers the device

    library = torch.library.Library("aten", "IMPL")
    library.impl(name, run, "PrivateUse1", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def replaced_on_tiny(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace the kernel of an aten operator on tiny inside the block. `make` gets the right kernel."""
    import conformance.backend  # noqa: F401 - registers the kernels

    kernel = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")

    def run(keys: Any, *args: Any) -> Any:
        return make(lambda *given: kernel.call_boxed(keys, *given))(*args)

    with kernel_on_tiny(name, run):
        yield


def traced_step(module: nn.Module) -> conformance.sources.trace.api.Trace:
    """Return the trace of a forward and a backward pass of a recurrent layer on tiny."""
    import conformance.backend

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


ATTENTION = "_scaled_dot_product_fused_attention_overrideable"


def attend(keys: Any, query: Any, key: Any, value: Any, bias: Any = None, *rest: Any, **options: Any) -> Any:
    """A fused kernel of attention, whose workspaces are of its own form."""
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(query, key, value, bias, is_causal=rest[1:2] == (True,), enable_gqa=grouped)
    empty = out.new_empty(0)
    return out, empty, empty, empty, query.shape[-2], key.shape[-2], empty, empty, empty


def attend_backward(keys: Any, grad: Any, query: Any, key: Any, value: Any, bias: Any, mask: Any, *rest: Any) -> Any:
    """The gradients of a fused kernel of attention. It fills those that nobody wants with garbage."""
    out, is_causal = rest[0], rest[7]
    grads = references.attention_backward(grad, query, key, value, bias, out, is_causal, None)
    return tuple(one if wanted else query.new_full((3,), 7.0) for one, wanted in zip(grads, mask))


@pytest.mark.tiny
@pytest.mark.parametrize("wrong", ["", "forward", "backward"])
@pytest.mark.parametrize(("heads", "biased"), [(2, True), (1, False)])
def test_fused_attention_is_judged_by_its_formula(wrong: str, heads: int, biased: bool) -> None:
    """A device's own kernel of attention, which torch CPU lacks: the output and the wanted gradients are compared, and
    nothing else. A wrong output is no fault of the backward kernel."""

    def forward(keys: Any, *args: Any, **options: Any) -> Any:
        out, *rest = attend(keys, *args, **options)
        return (out * 1.01 if wrong == "forward" else out), *rest

    def backward(keys: Any, grad: Any, *args: Any, **options: Any) -> Any:
        by_query, by_key, *rest = attend_backward(keys, grad, *args)
        return by_query, (by_key * 1.01 if wrong == "backward" else by_key), *rest

    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, 5, 4) for n in (2, heads, heads))
    bias = torch.randn(1, 2, 5, 5) if biased else None
    with kernel_on_tiny(ATTENTION, forward), kernel_on_tiny(f"{ATTENTION}_backward", backward):
        query, key, value = (tensor.to("tiny").requires_grad_() for tensor in (query, key, value))
        with conformance.trace() as trace:
            bias = None if bias is None else bias.to("tiny")
            out = getattr(torch.ops.aten, ATTENTION)(query, key, value, bias, 0.0, not biased)[0]
            (out * torch.arange(4.0).to("tiny")).sum().backward()
    named = {"": [], "forward": [f"aten.{ATTENTION}.default"], "backward": [f"aten.{ATTENTION}_backward.default"]}
    assert [fault.name for fault in trace.faults] == named[wrong], str(trace)
    assert not trace.unjudged_calls


@pytest.mark.parametrize("kind", ["fused_attention_overrideable", "efficient_attention"])
def test_formula_of_attention_agrees_with_torchs(kind: str) -> None:
    """Output and gradients, with a bias and with grouped heads, in float64, whatever the order of the arguments."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 5, 4, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2))
    bias = torch.randn(2, 1, 5, 5, dtype=torch.float64, requires_grad=True)
    want = F.scaled_dot_product_attention(query, key, value, bias, enable_gqa=True)
    grad = torch.randn_like(want)
    right = torch.autograd.grad(want, [query, key, value, bias], grad)
    operators = [getattr(torch.ops.aten, f"_scaled_dot_product_{kind}{end}").default for end in ("", "_backward")]
    forward, backward = map(references.reference_of, operators)
    mask, none = [True] * 4, [None] * 3
    with torch.no_grad():
        if kind == "efficient_attention":
            mine = backward(grad, query, key, value, bias, want, *none, 0.0, mask)
        else:
            mine = backward(grad, query, key, value, bias, mask, want, *none, 5, 5, 0.0, False, None, None)
        torch.testing.assert_close(forward(query, key, value, bias, False)[0], want)
    torch.testing.assert_close(mine, right)


@pytest.mark.tiny
def test_attention_with_dropout_leaves_no_verdict_about_gradients() -> None:
    """Only the device knows which weights it dropped."""
    with kernel_on_tiny(ATTENTION, attend), kernel_on_tiny(f"{ATTENTION}_backward", attend_backward):
        query = torch.randn(1, 2, 5, 4).to("tiny").requires_grad_()
        with conformance.trace() as trace:
            getattr(torch.ops.aten, ATTENTION)(query, query, query, None, 0.5)[0].sum().backward()
    assert not trace.faults and trace.unjudged_calls == {f"aten.{ATTENTION}_backward.default": 1}


@pytest.mark.tiny
def test_operator_of_a_device_is_judged_by_its_decomposition() -> None:
    """An operator of which torch CPU has no kernel: its decomposition is the reference, and without one the verdict
    names it."""
    import conformance.backend

    library = torch.library.Library("traced", "FRAGMENT")
    for name in ("twice", "thrice"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * 2.02, "PrivateUse1")
    torch._decomp.register_decomposition(torch.ops.traced.twice.default)(lambda x: x + x)
    x = torch.ones(3).to("tiny")
    with conformance.trace() as trace:
        torch.ops.traced.twice(x)
        torch.ops.traced.thrice(x)
    library._destroy()
    assert [fault.name for fault in trace.faults] == ["traced.twice.default"]
    assert "1 wrong operator; 1 of 2 calls were not judged, of traced.thrice.default" in str(trace)


def test_operators_that_may_draw_are_judged_when_they_do_not() -> None:
    """`rrelu` and `native_dropout` draw numbers in training only, and attention with dropout only."""

    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not any(tag in func.tags for tag in (torch.Tag.nondeterministic_seeded,)):
                return result
            return result * 2 if isinstance(result, torch.Tensor) else (result[0] * 2, *result[1:])

    x = torch.randn(1, 1, 3, 4)
    with Doubles(), conformance.trace("cpu") as trace:
        torch.ops.aten.rrelu_with_noise(x, torch.zeros_like(x), 0.1, 0.3, False)
        torch.native_dropout(x, 0.5, False)
        F.scaled_dot_product_attention(x, x, x)
        torch.native_dropout(x, 0.5, True)
    names = ["rrelu_with_noise", "native_dropout", "_scaled_dot_product_flash_attention_for_cpu"]
    assert {fault.name for fault in trace.faults} == {f"aten.{name}.default" for name in names}


@pytest.mark.tiny
def test_operators_of_functions_are_judged_as_graphs() -> None:
    """`torch.cond` and `while_loop` run on a device under the trace, which formerly raised, and a wrong part is found.
    A call outside of a graph is not judged, and the verdict says so."""

    def one_call() -> conformance.sources.trace.api.Trace:
        torch.compiler.reset()  # a graph that was compiled before is not traced
        with conformance.trace() as trace:
            torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return trace

    import conformance.backend

    x = torch.ones(3).to("tiny")
    trace = one_call()
    assert not trace.faults and not trace.unjudged_calls, str(trace)
    with planted("sin.default", lambda value: value + 1):
        assert one_call().faults
    with conformance.trace() as trace:
        torch.ops.higher_order.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))
    assert trace.unjudged_calls == {"cond": 1}
