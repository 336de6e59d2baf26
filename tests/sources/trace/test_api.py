"""`conformance.trace`: wrong operators by name, phase and line, and nothing else."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import conformance
from conformance.engine.loading import load_target
from conformance.record.errors import UsageError
from conformance.record.shortfall import FINDINGS, Shortfall
from conformance.sources.trace.api import Trace
from conformance.sources.trace.faults import FaultyOperator
from conformance.sources.trace.mode import Options
from conformance.sources.trace.source_lines import FORWARD, SourceLine
from conformance.standalone.oracles import Mismatch
from tests.sources.trace.planting import planted


def test_the_cpu_agrees_with_itself():
    """A training step on the CPU has no wrong operator, and each phase has judged calls."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters())
    with conformance.trace("cpu") as trace:
        loss = net(torch.ones(5, 3)).square().mean()
        loss.backward()
        optimizer.step()
    assert not trace.faults and trace.loss == pytest.approx(loss.item())
    assert {phase for _, phase in trace.mode.tallies} == {"forward", "backward", "optimizer"}
    assert all(tally.judged == tally.seen for tally in trace.mode.tallies.values())


def test_the_generator_is_left_alone():
    """A traced script draws the numbers that it draws without a trace."""
    torch.manual_seed(0)
    want = torch.rand(3), F.dropout(torch.ones(9)), torch.rand(3)
    torch.manual_seed(0)
    with conformance.trace("cpu"):
        got = torch.rand(3), F.dropout(torch.ones(9)), torch.rand(3)
    assert all(map(torch.equal, want, got))


def test_samples():
    """Options select each n-th call, operators by pattern, and training steps."""
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with conformance.trace("cpu", every=3, operators=["aten.mul*"], steps=(2, 3)) as trace:
        for _ in range(4):
            for _ in range(2):
                weight.detach().mul(2)
            optimizer.step()
    tally = trace.mode.tallies["aten.mul.Tensor", "forward"]
    assert (tally.seen, tally.judged) == (8, 1)  # calls 3 to 6 are in the steps, and call 4 is the one of three
    assert trace.mode.tallies["aten.detach.default", "forward"].judged == 0


def test_a_compiler_is_no_device():
    """A target that transforms functions has no device to trace."""
    with pytest.raises(UsageError, match="has no device"), conformance.trace("functionalize"):
        pass


@pytest.mark.tiny
class TestTiny:
    @pytest.fixture(autouse=True)
    def device(self):
        """Register the device."""
        import conformance.backend  # noqa: F401

    def test_a_wrong_operator_is_named(self):
        """The operator, its phase, its line, and a minimized script. Other operators compute with its wrong result and
        are right."""
        net = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1)).to("tiny")
        x = torch.ones(4, 2).to("tiny")
        with planted("gelu.default", lambda value: value + 1), conformance.trace() as trace:
            loss = net(x).square().mean()
            line = inspect.currentframe().f_lineno - 1
            loss.backward()
        (fault,) = trace.faults
        assert (fault.name, fault.phase) == ("aten.gelu.default", "forward")
        assert (fault.place.file, fault.place.line) == (__file__, line)
        assert "torch.ops.aten.gelu.default(self)" in fault.script and "torch.tensor(0.0)" in fault.script
        assert fault.effect > 0 and fault.wrong == 1

    def test_the_backward_pass_has_the_line_of_the_forward_call(self):
        """A wrong gradient is named with the line of the call that it belongs to, not with the line of `backward`."""
        x = torch.ones(4, 2).to("tiny").requires_grad_()
        with planted("sigmoid_backward.default", lambda value: value * 2), conformance.trace() as trace:
            y = torch.sigmoid(x)
            line = inspect.currentframe().f_lineno - 1
            y.sum().backward()
        (fault,) = trace.faults
        assert (fault.name, fault.phase) == ("aten.sigmoid_backward.default", "backward")
        assert fault.place.line == line and fault.error == pytest.approx(1.0)

    def test_the_effect_is_the_change_of_the_loss(self):
        """For a linear loss the effect is exactly the change that the error causes."""
        x = torch.full((4,), 0.5).to("tiny").requires_grad_()
        with planted("sin.default", lambda value: value + 0.5), conformance.trace() as trace:
            loss = (torch.sin(x) * 3).sum()
            loss.backward()
        (fault,) = trace.faults
        assert fault.effect == pytest.approx(4 * 0.5 * 3)
        assert fault.share(trace.loss) == pytest.approx(6 / loss.item())

    def test_the_worst_comes_first(self):
        """The rank is the effect on the loss, not the error of the result."""
        x = torch.ones(3).to("tiny").requires_grad_()
        small, large = planted("sin.default", lambda v: v * 1.1), planted("exp.default", lambda v: v * 1.5)
        with small, large, conformance.trace() as trace:
            (torch.sin(x).sum() * 1000 + torch.exp(x).sum()).backward()
        assert [fault.name for fault in trace.faults] == ["aten.sin.default", "aten.exp.default"]
        assert trace.faults[0].error < trace.faults[1].error

    def test_nan_is_the_worst(self):
        """A result that is nan changes the loss by an infinite amount."""
        x = torch.ones(3).to("tiny").requires_grad_()
        with planted("sin.default", lambda v: v * float("nan")), conformance.trace() as trace:
            torch.sin(x).sum().backward()
        (fault,) = trace.faults
        assert fault.effect == math.inf and "changes the loss by inf" in str(trace)


def test_wrong_operators_without_a_script_are_counted():
    """Beyond `MOST_SCRIPTS` faults get none, and the trace says how many."""
    trace, place, wrong = (
        Trace(None, Options(), lambda trace: None),
        SourceLine(),
        Mismatch("value", "result", "1", "2"),
    )
    for name, script in (("aten.relu.default", "a script"), ("aten.sum.default", ""), ("aten.neg.default", "")):
        fault = FaultyOperator(name, FORWARD, place, wrong, None, load_target("cpu"), script=script)
        trace.mode.faults.by_key[name, FORWARD, place] = fault
    assert trace.not_judged == [Shortfall("wrong operators with a script", 2, 3, "20 scripts")]
    for fault in trace.faults:
        fault.script, fault.cut = "a script", fault.name == "aten.neg.default"
    assert trace.not_judged == [Shortfall(FINDINGS, 1, 3, "time of one finding")]
