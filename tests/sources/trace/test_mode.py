"""What a trace sees: writes, views, casts, hooks, checkpoints and custom functions, each with its line and phase."""

from __future__ import annotations

import gc
import inspect
import random
import weakref
from dataclasses import replace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import conformance
from conformance.engine.loading import load_target
from conformance.sources.trace.call import TracedCall
from tests.sources.trace.planting import planted


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.sin(grad)


SIN = inspect.getsourcelines(Doubled)[1] + 3
BACKWARD_SIN = SIN + 4


def places(trace):
    """Return phase and line of each fault."""
    return [(fault.phase, fault.place.line) for fault in trace.faults]


def test_every_kind_of_call_is_judged():
    """In-place writes, out=, views of one storage, list operators, 0-d and empty tensors, and a Python answer."""
    with conformance.trace("cpu") as trace:
        x = torch.arange(6.0).view(2, 3)
        x.t()[0].add_(1).clamp_(max=2)
        torch.mul(x, 2, out=torch.empty(0))
        torch._foreach_add_([x[0], x[1]], 1.0)
        x[:, :0].sum().item()
        x.unsqueeze_(0).index_put_((torch.tensor([0]),), torch.tensor(1.0))
        torch.randn(3).bernoulli_()
        x.to(torch.bfloat16).complex32() if hasattr(x, "complex32") else torch.view_as_real(x * 1j)
    assert not trace.faults, str(trace)
    assert all(tally.judged == tally.seen for tally in trace.mode.tallies.values()), str(trace)


def test_autocast_does_not_reach_the_reference():
    """Casts of the script's autocast are operators of their own; the reference computes in the dtype of the device."""
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with conformance.trace("cpu") as trace, torch.autocast("cpu", torch.bfloat16):
        y = F.layer_norm(x @ w, (4,)).relu()
        y.float().sum().backward()
    assert not trace.faults and w.grad is not None, str(trace)
    assert trace.mode.tallies["aten._to_copy.default", "forward"].judged


def test_the_trace_changes_no_answer():
    """A traced training step gives the same loss and gradients as one without a trace."""

    def step():
        torch.manual_seed(0)
        w = torch.randn(4, 4, requires_grad=True)
        loss = checkpoint(lambda x: F.dropout(x @ w).tanh(), torch.randn(3, 4), use_reentrant=False).sum()
        loss.backward()
        return loss.detach(), w.grad

    want = step()
    with conformance.trace("cpu"):
        got = step()
    assert all(map(torch.equal, want, got))


def test_a_failure_of_the_judge_ends_no_script(monkeypatch):
    """A call that cannot be compared is counted with the reason, and the script goes on."""

    def fails(*args):
        raise TypeError("no such comparison")

    monkeypatch.setattr(TracedCall, "judged", fails)
    with conformance.trace("cpu") as trace:
        assert torch.ones(3).neg().tolist() == [-1, -1, -1]
    assert "calls not judged: TypeError: no such comparison" in str(trace)


class Writes(TorchDispatchMode):
    """A device with an operator that also changes its arguments by a function."""

    def __init__(self, name, change):
        super().__init__()
        self.operator, self.change = getattr(torch.ops.aten, name), change

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is self.operator:
            self.change(*args)
        return result


def halve(tensor, *others):
    """Halve the first argument."""
    tensor.mul_(0.5)


def write_beside(tensor, *others):
    """Write the last element of the first argument's storage."""
    torch.as_strided(tensor, (1,), (1,), 5).fill_(7)


def batch_norm(x):
    """Return the batch norm of a matrix with two columns, with running statistics."""
    state = [torch.full((2,), number) for number in (0.5, 1.5)]
    return F.batch_norm(x, *state, torch.full((2,), 2.0), None, training=True)


UNDECLARED = [
    ("neg", halve, torch.neg, "value of self"),
    ("neg", write_beside, lambda x: -x[0], "storage of self"),
    ("neg", lambda x: x.t_(), torch.neg, "shape of self"),
    ("add_", lambda x, other: other.zero_(), lambda x: x.clone().add_(x), "value of other"),
    ("_foreach_add_", lambda x, other, *_: other[1].zero_(),
     lambda x: torch._foreach_add_([x.clone(), x.clone()], [x, x + 1]), "value of other[1]"),
    ("index", lambda x, indices: indices[0].zero_(), lambda x: x[torch.tensor([2, 1])], "value of indices[0]"),
    ("copy_", lambda x, source: source.zero_(), lambda x: x.clone().copy_(x), "value of src"),
    ("native_batch_norm", lambda x, weight, *_: weight.zero_(), batch_norm, "value of weight"),
    ("native_batch_norm", lambda *args: args[4].mul_(0.5), batch_norm, "value of running_var"),
    ("_local_scalar_dense", halve, lambda x: x[0, 1].item(), "value of self"),
    ("t", halve, lambda x: x.t(), "value of self"),
    ("detach", halve, lambda x: x.detach(), "value of self"),
    ("select", write_beside, lambda x: x[0], "value of self"),
    ("native_dropout", halve, lambda x: torch.native_dropout(x, 0.5, True), "storage of input"),
    ("bernoulli", halve, lambda x: torch.bernoulli(x / 9), "storage of self"),
    ("empty_like", halve, torch.empty_like, "storage of self"),
]  # fmt: skip
"""Operator, the change of its arguments that its schema does not declare, a call, and the difference that is found."""


@pytest.mark.parametrize(("name", "change", "call", "found"), UNDECLARED)
def test_an_undeclared_write_is_found(name, change, call, found):
    """Every argument is compared after the call, with its whole storage: also one of a view, and one of an operator
    whose result is random or undefined, of which nothing but metadata was compared formerly."""
    x = torch.arange(6.0).view(3, 2)
    with Writes(name, change), conformance.trace("cpu") as trace:
        call(x)
    fault = trace.faults[0]
    assert fault.name.startswith(f"aten.{name}.") and not trace.unjudged_calls
    assert f"{fault.mismatch.oracle} of {fault.mismatch.where}" == found


def test_declared_writes_of_random_operators_are_no_faults():
    """The reference draws other numbers into the arguments that the schema declares as written."""
    x, noise = torch.arange(6.0).view(3, 2) / 9, torch.ones(3, 2)
    with conformance.trace("cpu") as trace:
        torch.bernoulli(x, out=noise)
        torch.ops.aten.rrelu_with_noise(-x, noise, 0.1, 0.3, True)
        torch.normal(x, 1.0, out=x)
        x[1].uniform_()
    assert not trace.faults and not trace.unjudged_calls, str(trace)


class TestNonfinite:
    """Operators that make nan or inf out of finite inputs, without a reference."""

    def found(self, call):
        """Return the names of the operators, in order, with the tensors that are not finite."""
        with conformance.trace(nonfinite=True) as trace:
            call(torch.tensor([[1.0, 100.0]]))
        assert not trace.unjudged_calls
        return [(fault.name, fault.mismatch.where) for fault in trace.mode.faults.in_order], str(trace)

    def test_the_first_is_named(self):
        """Calls with inputs that are not finite pass them on and are not listed. The CPU is traced, too."""
        line = inspect.currentframe().f_lineno + 1
        found, text = self.found(lambda x: torch.log(x.exp() - x.exp()).add(1))
        assert found == [("aten.exp.default", "result")]
        assert f"the first nan or inf is that of aten.exp.default, test_mode.py:{line}" in text
        assert "result should be finite numbers and is [[2.7" in text and ", inf]]" in text

    def test_an_argument_is_searched(self):
        """Also one that the schema does not declare as written, and a foreach operator, which returns nothing."""
        with Writes("neg", lambda x: x.div_(0)):
            assert self.found(torch.neg)[0] == [("aten.neg.default", "self")]
        assert self.found(lambda x: torch._foreach_exp_([x, x + 0]))[0][0] == ("aten._foreach_exp_.default", "self[0]")

    def test_what_an_operator_only_writes_is_no_input(self):
        """The former content of `out=` does not excuse the result."""
        out = torch.full((1, 2), torch.nan)
        assert self.found(lambda x: torch.exp(x, out=out))[0] == [("aten.exp.out", "out")]

    def test_infinities_that_the_script_states_are_none(self):
        """A mask of -inf, and new memory."""
        mask = torch.tensor([[True, False]])
        found, text = self.found(lambda x: (x.masked_fill(mask, -torch.inf).softmax(-1), torch.empty(1000), 1 / x))
        assert not found and "no nan or inf" in text

    def test_a_gradient(self):
        """The line of the forward pass is named."""
        found, text = self.found(lambda x: (x * 0).requires_grad_().sqrt().sum().backward())
        assert found == [("aten.div.Tensor", "result")] and "backward: 1 operator makes nan or inf" in text

    def test_a_compiled_graph(self):
        """The graph is named."""
        torch.compiler.reset()
        found, _ = self.found(torch.compile(lambda x: x.exp() + 1, backend="eager"))
        assert found[0] == ("compiled graph 1", "result[0]")

    @pytest.mark.tiny
    def test_a_wrong_device(self):
        """A device whose operator overflows is found without torch CPU's answer."""
        import conformance.backend  # noqa: F401 - registers the device

        with planted("sin.default", lambda value: value / 0):
            assert self.found(lambda x: x.to("tiny").sin())[0][0][0] == "aten.sin.default"


class Copies(TorchDispatchMode):
    """A device whose `t` copies."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.clone() if func is torch.ops.aten.t.default else result


def test_a_view_that_copies():
    """A view with memory of its own is named, although its values are right."""
    with Copies(), conformance.trace("cpu") as trace:
        torch.ones(3, 2).t()
    (fault,) = trace.faults
    assert (fault.name, fault.mismatch.oracle) == ("aten.t.default", "alias")


def test_modes_of_a_device_stay():
    """A device that pushes a mode inside the trace keeps it, and the trace ends."""
    mode = Copies()
    with conformance.trace("cpu") as trace:
        mode.__enter__()
        torch.ones(3).neg()
    torch.ones(3).neg()
    assert _get_current_dispatch_mode_stack() == [mode] and trace.judged == 2
    mode.__exit__(None, None, None)


@pytest.mark.tiny
class TestTiny:
    @pytest.fixture(autouse=True)
    def device(self):
        """Register the device, with a wrong sine."""
        import conformance.backend  # noqa: F401

        with planted("sin.default", lambda value: value + 1):
            yield

    def test_the_default_device(self):
        """The reference runs on the CPU although new tensors lie on the device."""
        torch.set_default_device("tiny")
        try:
            with conformance.trace() as trace:
                torch.ones(3).add(torch.arange(3)).sum()
        finally:
            torch.set_default_device(None)
        assert not trace.faults and all(tally.judged == tally.seen for tally in trace.mode.tallies.values()), str(trace)

    def test_a_custom_function(self):
        """Forward and backward of a custom function have lines of their own."""
        x = torch.ones(3).to("tiny").requires_grad_()
        with conformance.trace() as trace:
            Doubled.apply(x).sum().backward()
        assert places(trace) == [("forward", SIN), ("backward", BACKWARD_SIN)]

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_a_checkpoint(self, reentrant):
        """The recomputed forward pass belongs to the backward pass, with the line of the forward pass."""
        x = torch.ones(3).to("tiny").requires_grad_()
        line = inspect.currentframe().f_lineno + 1
        inner = lambda x: torch.sin(x) * x  # noqa: E731
        with conformance.trace() as trace:
            checkpoint(inner, x, use_reentrant=reentrant).sum().backward()
        assert places(trace) == [("forward", line), ("backward", line)]

    def test_a_hook(self):
        """A hook that runs in the backward pass has its own line."""
        x = torch.ones(3).to("tiny").requires_grad_()
        line = inspect.currentframe().f_lineno + 1
        hook = lambda grad: torch.sin(grad).cos()  # noqa: E731
        x.register_hook(hook)
        with conformance.trace() as trace:
            (x * 2).sum().backward()
        assert places(trace) == [("backward", line)]

    def test_an_optimizer(self):
        """A wrong operator of an optimizer step, with the effect of its error on the loss."""

        class Sine(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for one in self.param_groups[0]["params"]:
                    one.sin_()

        x = torch.full((3,), 0.5).to("tiny").requires_grad_()
        optimizer = Sine([x], {})
        with conformance.trace() as trace:
            (x * 2).sum().backward()
            optimizer.step()
        (fault,) = trace.faults
        assert (fault.phase, fault.name) == ("optimizer", "aten.sin_.default")
        assert fault.effect == pytest.approx(3 * 1 * 2)

    def test_several_devices(self):
        """Calls between two devices are judged, in both directions."""
        x = torch.ones(3).to("tiny").requires_grad_()
        with conformance.trace() as trace:
            y = (x.cpu() * 2).to("tiny")
            torch.sin(y).sum().backward()
        assert [fault.name for fault in trace.faults] == ["aten.sin.default"]
        assert trace.mode.tallies["aten._to_copy.default", "forward"].judged == 2

    def test_a_call_that_the_device_refuses(self):
        """An error of the device where torch CPU has none is a finding, and reaches the script."""

        def refuses(value):
            raise NotImplementedError("no cosine")

        with planted("cos.default", refuses), conformance.trace() as trace, pytest.raises(NotImplementedError):
            torch.cos(torch.ones(3).to("tiny"))
        (fault,) = trace.faults
        assert fault.name == "aten.cos.default" and fault.mismatch.oracle == "error"


class TestTheProgramOfACall:
    """A call is judged as a program of one step, which runs again only where values differ."""

    def judged(self):
        """Judge a sum whose device's answer is 1 % off, and return a weak reference to the call, and the names of the
        wrong tensors."""
        call = TracedCall(torch.ops.aten.sum.default, (torch.arange(64) / 7,), {})
        want = call.by_cpu()
        seen = want.last.tensors["result"]
        tensors = {**want.last.tensors, "result": replace(seen, value=seen.value * 1.01)}
        got = replace(want, observations=(replace(want.last, tensors=tensors),))
        return weakref.ref(call), [wrong.where for wrong in call.judged(want, got, load_target("cpu")).mismatches]

    def test_the_answer_in_float64_draws_from_no_generator(self):
        """The generators are the script's: a wrong call must not change what the script draws next."""

        def generators():
            return torch.random.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()

        before = generators()
        assert self.judged()[1] == ["result"]
        assert generators() == before

    def test_the_copies_are_freed_at_once(self):
        """A cycle of references would keep the copies of every call until the garbage collector runs."""
        gc.disable()
        try:
            assert self.judged()[0]() is None
        finally:
            gc.enable()
