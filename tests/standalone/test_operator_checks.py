"""The checks of an operator as plain functions of one call."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from types import SimpleNamespace

import pytest
import torch

from conformance.standalone.derivative_checks import compare_gradients, watch_dispatch
from conformance.standalone.operator_checks import (
    CheckedCall,
    NotJudged,
    compare_batch,
    compare_results,
    expect_error,
    fill_memory,
    guard_memory,
    observe_call,
    repeat_call,
    report_differences,
    report_in_fork,
    seed_generators,
)
from conformance.standalone.oracles import Mismatch
from conformance.standalone.script import MODULES, ROOM, definitions_of
from conformance.standalone.transform_checks import compare_vmap


def inputs():
    return {"x": torch.tensor([[1.0, -2.0], [3.0, 0.5]])}


def found(check, operator, reference=torch.relu, **more) -> list[str]:
    """The names under which a check finds differences."""
    return [name for name, _ in check(CheckedCall(operator, inputs, reference, **more))]


class TestCompareResults:
    def test_the_reference_itself(self):
        assert found(compare_results, torch.relu) == []

    @pytest.mark.parametrize(("operator", "names"), [
        (lambda x: x.relu() * 1.01, ["values"]),
        (lambda x: x.relu().double(), ["dtype"]),
        (lambda x: [x.relu()], ["structure"]),
        (lambda x: x.relu().t().contiguous().t(), ["strides"]),
        (lambda x: x.relu_(), ["mutation", "mutation", "aliasing"]),
        (lambda x: x.mul(torch.tensor("no")), ["values"]),
    ])  # fmt: skip
    def test_a_wrong_operator(self, operator, names):
        """Each difference has the name of its check."""
        assert sorted(found(compare_results, operator)) == sorted(names)

    def test_a_declared_write(self):
        """The schema decides, and without one the reference."""

        def write(x):
            x.relu_()

        assert found(compare_results, write, write) == [] == found(compare_results, write, write, writes=["x"])
        assert found(compare_results, write, write, writes=[]) == ["mutation"]

    def test_another_order_of_a_sum_is_no_difference(self):
        """Values whose terms cancel may differ by the rounding of the terms."""
        terms = lambda: {"x": torch.tensor([1e8, 1.0, -1e8, 1e-3])}  # noqa: E731
        backwards = CheckedCall(lambda x: sum(x.flip(0).unbind()), terms, lambda x: sum(x.unbind()))
        assert [*compare_results(backwards)] == []
        wrong = CheckedCall(lambda x: x.sum() + 1e6, terms, lambda x: sum(x.unbind()))
        assert [name for name, _ in compare_results(wrong)] == ["values"]

    def test_an_operator_that_refuses_several_dtypes(self):
        """PyTorch does not require that it takes them."""
        with pytest.raises(NotJudged, match="the operator refuses them"):
            found(compare_results, lambda x: torch.relu(x, x), kind="mixed")


class TestOtherChecks:
    def test_repetition(self):
        counts = iter(range(9))
        assert found(repeat_call, lambda x: x * next(counts)) == ["repetition"]
        assert found(repeat_call, torch.relu) == []

    def test_unwritten_memory(self):
        assert found(fill_memory, torch.empty_like) == ["unwritten"]
        assert found(fill_memory, torch.relu) == []

    def test_a_write_beside_new_memory(self, capfd):
        """The page holds more bytes than the result."""

        def write_before(x):
            result = torch.empty_like(x).copy_(x)
            ctypes.c_char.from_address(result.data_ptr() - 1).value = b"x"
            return result

        wrong = CheckedCall(write_before, inputs)
        assert report_in_fork("writes", lambda: guard_memory(wrong), 60.0) == 1
        said = "writes of the memory outside the tensors: expected no change, got a change of 1 bytes before"
        assert said in capfd.readouterr().out
        assert found(guard_memory, torch.relu) == []

    def test_batch(self):
        """Without a dimension there is nothing to compare."""
        assert found(compare_batch, lambda x: x - x.mean(0), batch={"x": 0}) == ["batch"]
        assert found(compare_batch, torch.relu, batch={"x": 0}) == []
        with pytest.raises(NotJudged, match="no argument has a batch dimension"):
            found(compare_batch, torch.relu)

    def test_gradients(self):
        assert found(compare_gradients, lambda x: x.relu().detach() + 0 * x) == ["gradients"]
        assert found(compare_gradients, torch.relu) == []
        with pytest.raises(NotJudged, match="the reference has no gradient"):
            found(compare_gradients, torch.relu, torch.Tensor.detach)

    @pytest.mark.parametrize(("text", "said"), [
        ("no such thing", "the reference has no gradient: RuntimeError: no such thing"),
        ("Unable to handle autograd's threading in combination with fork-based multiprocessing.", "process of its own"),
    ])  # fmt: skip
    def test_why_there_is_no_gradient(self, text, said):
        """Regression test: a fork in which autograd does not run had a reference without a gradient."""

        def refuse(x):
            raise RuntimeError(text)

        with pytest.raises(NotJudged, match=said):
            found(compare_gradients, torch.relu, refuse)

    def test_operators_of_a_pass_with_an_error(self):
        """Regression test: a backward pass that ended before it called the forbidden operator passed."""

        def refuse(grad):
            raise RuntimeError("no such thing")

        def relu(x):
            result = torch.relu(x)
            if result.requires_grad:
                result.register_hook(refuse)
            return result

        assert found(watch_dispatch, torch.relu, forbidden=["aten::relu"]) == ["forbid"]
        assert found(watch_dispatch, torch.relu, forbidden=["aten::tanh"]) == []
        with pytest.raises(NotJudged, match="its backward pass calls were not seen: RuntimeError: no such thing"):
            found(watch_dispatch, relu, forbidden=["aten::tanh"])

    def test_vmap(self):
        assert found(compare_vmap, torch.relu) == []
        assert found(compare_vmap, lambda x: x + int("Batched" in str(x))) == ["vmap"]

    def test_refusals(self):
        refuses = lambda x: x.view(3)  # noqa: E731
        assert found(expect_error, torch.relu, refuses) == ["refusals"] and found(expect_error, refuses, refuses) == []


@pytest.mark.parametrize("in_bad_fork", [False, True])
def test_seeds_of_a_device_in_python(in_bad_fork, monkeypatch):
    """The generators of the CPU and of the device are seeded as by `torch.manual_seed`, and nothing is noted for kinds
    of accelerators that are not there. Regression test: it was, with the text of the stack, which took two thirds of
    a small call."""
    seeded, noted = [], []
    module = SimpleNamespace(manual_seed_all=seeded.append, _is_in_bad_fork=lambda: in_bad_fork)
    monkeypatch.setattr(torch, "planted", module, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type="planted"))
    monkeypatch.setattr(traceback, "format_stack", lambda: noted.append("a call") or [])
    torch.manual_seed(7)
    expected = torch.rand(3)
    assert noted
    noted.clear()
    seed_generators(7)
    assert torch.equal(torch.rand(3), expected)
    assert (seeded, noted) == ([] if in_bad_fork else [7], [])


def test_an_error_is_an_answer():
    """The observation has the error and the inputs."""
    seen = observe_call(lambda x: x.view(3), inputs)
    assert seen.error is not None and seen.error.kind == "RuntimeError" and "x" in seen.tensors


class TestReport:
    DIFFERENCE = ("values", Mismatch("value", "result", "1.0", "2.0"))

    def test_exit_codes(self, capsys):
        """1 for a difference of this check, 0 for none, and 2 if it is not judged."""
        assert report_differences("values", [self.DIFFERENCE]) == 1
        assert report_differences("dtype", [self.DIFFERENCE]) == 0
        assert report_differences("batch", compare_batch(CheckedCall(torch.relu, inputs))) == 2
        values, dtype, batch = capsys.readouterr().out.splitlines()
        assert (values, dtype) == ("values of result: expected 1.0, got 2.0", "dtype: no difference here")
        assert batch.startswith("batch is not judged: no argument has a batch dimension")

    @pytest.mark.parametrize(("work", "code", "said"), [
        (list, 0, "hang: no difference here"),
        (lambda: [("hang", Mismatch("hang", "x", "1", "2"))], 1, "hang of x: expected 1, got 2"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 1, "hang of the process: expected an answer, got its end by"),
        (signal.pause, 1, "hang of the process: expected an answer, got none in 0.2 s"),
    ])  # fmt: skip
    def test_the_end_of_a_fork(self, work, code, said, capfd):
        """A check that ends its process, or does not end, is a difference."""
        assert report_in_fork("hang", work, 0.2 if work is signal.pause else 60.0) == code
        assert said in capfd.readouterr().out


def test_carried_functions_have_different_names():
    """A script has one namespace, so a second definition of a name would replace the first one. `compare` of programs
    replaces that of observations. Regression test: the repros of known bugs had a `moved` beside that of samples, so
    each script of a sample in another layout raised the same error on both sides, and found no difference."""
    known: dict[str, list[str]] = {}
    for module in MODULES:
        for name in definitions_of(ROOM / module):
            known.setdefault(name, []).append(module.partition("/")[2])
    assert {name: modules for name, modules in known.items() if len(modules) > 1} == {
        "compare": ["oracles.py", "script_runtime.py"]
    }
