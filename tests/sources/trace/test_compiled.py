"""Compiled graphs in a trace: each graph against eager torch CPU, then its nodes."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import conformance
import tests.planted.lying_compilers
import tests.planted.toy_compiler  # noqa: F401
from conformance.sources.trace.api import Trace

pytestmark = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"), reason="this torch compiles nothing under a mode"
)


@pytest.fixture
def faults(monkeypatch):
    """Selects the faults of the toy compiler."""
    torch.compiler.reset()
    yield lambda names: monkeypatch.setenv("TOY_FAULTS", names)
    torch.compiler.reset()


def step(x):
    y = F.layer_norm(x, (4,))
    z = torch.relu(y) * 2
    return (z + 1).square().mean()


LINE = inspect.getsourcelines(step)[1]


def test_a_right_compiler_passes(faults):
    """Results and gradients of each call are judged, and no call of an operator inside."""
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    compiled = torch.compile(step, backend="aot_eager")
    with conformance.trace() as trace:
        for _ in range(2):
            compiled(x).backward()
    assert not trace.faults and trace.devices == ["compile:aot_eager"]
    assert {key: tally.judged for key, tally in trace.mode.tallies.items()} == {
        ("compiled graph 1", "forward"): 2,
        ("compiled graph 1", "backward"): 2,
    }


def test_a_wrong_node_is_named(faults):
    """The node with its line, and a script for the compiler."""
    faults("relu")
    x = torch.linspace(-1, 1, 12).view(3, 4)
    with conformance.trace() as trace:
        torch.compile(step, backend="toy")(x)
    (fault,) = trace.faults
    assert (fault.name, fault.phase) == ("torch.relu", "forward")
    assert (fault.place.file, fault.place.line) == (__file__, LINE + 2)
    assert "torch.relu(x0)" in fault.script and "torch.compile(backend='toy'" in fault.script


def test_nodes_without_time_are_not_judged(faults, monkeypatch):
    """The graph is a fault as a whole, and the trace says that its nodes were not tried."""
    faults("relu")
    monkeypatch.setattr(Trace, "attribute", lambda trace: trace.compiled.attribute(0.0))
    with conformance.trace() as trace:
        torch.compile(step, backend="toy")(torch.linspace(-1, 1, 12).view(3, 4))
    (fault,), (row,) = trace.faults, trace.not_judged
    assert fault.name == "compiled graph 1 by toy" and row.missing == row.planned > 1
    assert f"Not judged: {row.planned} of {row.planned} nodes of compiled graph 1 compiled alone (0 s for" in str(trace)
    monkeypatch.undo()
    faults("relu")
    torch.compiler.reset()
    with conformance.trace() as trace:
        torch.compile(step, backend="toy")(torch.linspace(-1, 1, 12).view(3, 4))
    assert trace.not_judged == [] and "Not judged" not in str(trace)


def test_a_wrong_gradient_is_named(faults):
    """A compiler that is wrong in the backward pass only."""
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    with conformance.trace() as trace:
        torch.compile(step, backend="negates_gelu_backward")(x)
        torch.compile(lambda x: F.gelu(x * 2).sum(), backend="negates_gelu_backward")(x).backward()
    (fault,) = trace.faults
    assert (fault.name, fault.phase, fault.group) == ("torch.nn.functional.gelu", "backward", "compiled graph 2")


def test_nodes_that_are_wrong_together(faults):
    """Every node alone is right: the last node of the shortest wrong beginning is named."""
    x = torch.linspace(-1, 1, 12).view(3, 4)
    with conformance.trace() as trace:
        torch.compile(lambda x: torch.neg(torch.exp(torch.sin(x) * 2)), backend="wrong_exp_of_products")(x)
    (fault,) = trace.faults
    assert fault.name == "torch.exp, together with the nodes before it" and "# No script" in fault.script


def test_random_graphs_are_judged_by_their_metadata(faults):
    """A compiler may draw other numbers than torch CPU, but not another shape."""
    with conformance.trace() as trace:
        result = torch.compile(lambda x: F.dropout(x) + 1, backend="draws_otherwise")(torch.ones(100))
    assert not trace.faults and trace.judged == 1 and result.shape == (100,)


def test_a_graph_outlives_its_trace(faults):
    """A function that was compiled under a trace is not judged after it."""
    faults("")
    compiled = torch.compile(step, backend="toy")
    with conformance.trace() as trace:
        compiled(torch.ones(3, 4))
    compiled(torch.ones(3, 4))
    assert trace.judged == 1


@pytest.mark.slow
def test_inductor(faults):
    """Inductor has no wrong graph in a small training step."""
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    with conformance.trace() as trace:
        torch.compile(step)(x).backward()
    assert not trace.faults and trace.judged == 2
