"""Single cases: correct ops pass, each planted fault fails with the right oracle, and every skip is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from conformance.record import names
from conformance.record.result import Outcome, Result, Run
from conformance.selftest.faults import Fault, InterceptedCall
from conformance.selftest.mutants import MutantTarget, Planted
from conformance.sources.opinfo import plan
from tests.run_script import Standalone

from .conftest import PLANTED, ROOT


def case(name: str, variant: str = "forward", layout: str = "as_sampled", dtype: str = "float32") -> plan.Case:
    return plan.Case(name, "", "unary", dtype, variant, layout, samples=4)


def run_case(target: Any, *arguments: Any, **named: Any) -> Result:
    from conformance.sources.opinfo.case import run_case

    return run_case(case(*arguments, **named), target)


class TestRight:
    """Torch CPU against itself."""

    @pytest.mark.parametrize("variant", sorted({*names.VARIANTS} - {"error_inputs", *names.CHANGED}))
    def test_every_variant_passes(self, cpu: Any, variant: str) -> None:
        """Every variant of an op passes. `test_arguments` tests those that change an argument."""
        result = run_case(cpu, "cumsum", variant)
        assert (result.outcome, result.failures) == (Outcome.PASS, ())
        assert result.samples >= 3

    @pytest.mark.parametrize("layout", names.LAYOUTS)
    @pytest.mark.parametrize("name", ["add", "index_select", "nn.functional.conv2d"])
    def test_every_layout_passes(self, cpu: Any, name: str, layout: str) -> None:
        """Inputs in any layout give the same results on both sides."""
        assert run_case(cpu, name, layout=layout).outcome is Outcome.PASS

    def test_a_write_to_an_expanded_input_is_not_compared(self, cpu: Any) -> None:
        """Running statistics in an expanded layout share memory, and each device writes them in a different order."""
        result = run_case(cpu, "native_batch_norm", layout="expanded")
        assert result.outcome is Outcome.PASS
        assert result.skipped >= 1
        sparse = run_case(cpu, "sparse.sampled_addmm", layout="expanded")  # sparse: no strides
        assert sparse.outcome is Outcome.PASS

    def test_samples_without_a_gradient_are_no_failure(self, cpu: Any) -> None:
        """Samples without a differentiable input are skipped for every target. The first two of normal.number_mean
        are such samples. Regression test: a run of two samples failed, and so did a device whose profile excused the
        third."""
        from conformance.sources.opinfo.case import run_case

        few = plan.Case("normal", "number_mean", "random", "float32", "backward", "as_sampled", samples=2)
        result = run_case(few, cpu)
        assert (result.outcome, result.reason) == (Outcome.SKIP, "no input requires a gradient")
        assert run_case(replace(few, samples=3), cpu).outcome is Outcome.PASS

    def test_error_inputs_pass(self, cpu: Any) -> None:
        """An input that must raise raises the same error, and counts as compared."""
        result = run_case(cpu, "gather", "error_inputs")
        assert result.outcome is Outcome.PASS
        assert result.samples > 0

    @pytest.mark.parametrize(
        "name", ["empty", "empty_like", "new_empty", "randn", "nn.functional.dropout", "to_sparse"]
    )
    def test_without_defined_or_fixed_value(self, cpu: Any, name: str) -> None:
        """Uninitialized memory is compared by metadata, random numbers with one seed, sparse results by their
        components."""
        assert run_case(cpu, name).outcome is Outcome.PASS

    def test_gradient_without_memory(self, cpu: Any) -> None:
        """The gradient of sgn has no memory; its comparison does not crash."""
        assert run_case(cpu, "sgn", "backward").outcome is Outcome.PASS


class OwnGenerator(TorchFunctionMode):
    """Mode that sets a seed in each call and makes sin wrong."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch.default_generator.manual_seed(7)
        result = function(*args, **(kwargs or {}))
        return result + 1 if function in (torch.sin, torch.Tensor.sin) else result


class NoBatchNorm(TorchFunctionMode):
    """Mode without a kernel for one operator."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.native_batch_norm:
            raise NotImplementedError("no kernel")
        return function(*args, **(kwargs or {}))


class TestRandom:
    """A device with another random number generator. On the first foreign device, 25 of 49 failures were random
    numbers."""

    @pytest.mark.parametrize("lacks", [frozenset(), frozenset({"random"})], ids=["judged", "lacking"])
    @pytest.mark.parametrize(
        ("name", "variant"),
        [("randn_like", "forward"), ("nn.functional.dropout", "forward"), ("nn.functional.dropout", "backward")],
    )
    def test_values_are_judged_where_the_numbers_are_the_same(
        self, cpu: Any, name: str, variant: str, lacks: frozenset[str]
    ) -> None:
        """Random values are judged only if the target does not lack `random`; dtypes, sizes and strides are always
        judged."""
        target = type(cpu)()
        target.facts = target.facts.without(lacks)
        target.active = OwnGenerator
        assert run_case(target, name, variant).outcome is (Outcome.PASS if lacks else Outcome.FAIL)

    @pytest.mark.parametrize("variant", ["forward", "backward"])
    def test_others_are_judged(self, cpu: Any, variant: str) -> None:
        """The judge compares the values of deterministic ops."""
        target = type(cpu)()
        target.facts = target.facts.without({"random"})
        target.active = OwnGenerator
        assert run_case(target, "sin", variant).outcome is Outcome.FAIL
        assert run_case(target, "exp", variant).outcome is Outcome.PASS


class TestPlanted:
    """Each fault fails its own oracle, and as few others as possible."""

    @pytest.mark.parametrize(
        ("name", "oracles"),
        [
            ("add", {"value"}),
            ("sub", {"stride", "contiguity"}),
            ("mul", {"storage_offset"}),
            ("floor", {"dtype"}),
            ("view_as", {"alias"}),
            ("cos", {"value", "storage"}),
            ("exp", {"error"}),
            ("tan", {"error"}),
        ],
    )
    def test_fault_is_named(self, planted: Any, name: str, oracles: set[str]) -> None:
        """The failing oracles are exactly those of the fault."""
        result = run_case(planted, name)
        assert result.outcome is Outcome.FAIL
        assert set(result.oracles) == oracles
        assert result.failed > 0

    def test_returning_the_input_is_an_alias(self, planted: Any) -> None:
        """A result that shares the input's storage is reported even if its values agree."""
        assert "alias" in run_case(planted, "expm1").oracles

    def test_not_implemented_is_never_a_pass(self, planted: Any) -> None:
        """An unsupported op fails even for error inputs, where the CPU raises too."""
        from conformance.sources.opinfo.catalog import find

        assert find(case("exp")).name == "exp"
        failure = run_case(planted, "exp").failures[0]
        assert "not implemented is never a pass" in failure.detail

    def test_an_error_comes_before_its_consequences(self, cpu: Any) -> None:
        """The error of an op comes first in the list of failures. Regression test: on three devices the first failure
        was about running statistics that an op without a kernel had not written."""
        target = type(cpu)()
        target.active = NoBatchNorm
        first, *others = run_case(target, "native_batch_norm").failures
        assert (first.oracle, first.actual) == ("error", "NotImplementedError")
        assert "value" in {failure.oracle for failure in others}

    def test_what_is_left_alone_passes(self, planted: Any) -> None:
        """Ops without a planted fault pass."""
        assert run_case(planted, "sin").outcome is Outcome.PASS

    def test_script_shows_the_fault(self, planted: Any, standalone: Standalone) -> None:
        """The failure's script runs standalone, prints both answers, and exits with 1."""
        script = run_case(planted, "add").failures[0].script
        assert "import conformance" not in script
        done = standalone(f"import sys\nsys.path[:0] = [{str(PLANTED)!r}, {str(ROOT)!r}]\n{script}")
        assert done.returncode == 1, done.stderr
        shown = done.stdout.splitlines()
        assert shown[0].startswith("cpu ")
        assert shown[0].partition(" ")[2] != shown[1].partition(" ")[2]
        assert shown[2].startswith("value of result: expected ")

    def test_memory_is_a_crash(self, planted: Any) -> None:
        """A target that runs out of memory is a CRASH, not an ordinary error."""
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, before[1]))
        try:
            result = run_case(planted, "erf")
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        assert (result.outcome, result.oracles[0]) == (Outcome.CRASH, "memory")

    def test_values_and_layouts_for_the_report(self, planted: Any) -> None:
        """A value mismatch contains the differing elements, and a stride mismatch contains both geometries."""
        value, stride = run_case(planted, "add").failures[0], run_case(planted, "sub").failures[0]
        assert any(bad for *_, bad in value.values)
        assert stride.layouts["expected"]["stride"] != stride.layouts["actual"]["stride"]


class TestSkip:
    """Samples that cannot be compared."""

    def test_a_whole_case_must_be_declared(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A case without a sample fails, until the expectations declare the skip."""
        from conformance.declare.declaration import Declaration, Scope
        from conformance.declare.expectations import judged
        from conformance.sources.opinfo import case as module

        monkeypatch.setattr(module, "samples", lambda *_: iter(()))
        result = run_case(cpu, "sin")
        assert (result.outcome, result.oracles, result.samples) == (Outcome.FAIL, ("not compared",), 0)
        assert "no sample" in result.failures[0].detail
        entry = Declaration(Scope(op=("sin",)), ("not compared",), "has no samples")
        assert judged(result, [entry]).outcome is Outcome.SKIP

    def test_what_the_target_declares_is_skipped(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A dtype that the target declares as unsupported is a skip, and no failure."""
        monkeypatch.setattr(cpu, "facts", replace(cpu.facts, dtypes=frozenset()))
        assert run_case(cpu, "sin").outcome is Outcome.SKIP

    def test_undeclared_skip_fails(self, cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """An input that cannot be moved fails the oracle `not compared` until it is declared, even if other samples
        pass."""
        import torch

        from conformance.declare.declaration import Declaration, Scope
        from conformance.declare.expectations import judged
        from conformance.sources.opinfo import case as module
        from conformance.sources.opinfo.sampling import Sample

        opaque = torch.ones(2, 2).to_mkldnn()
        drawn = [Sample(0, torch.ones(2), (), {}), Sample(1, opaque, (), {})]
        monkeypatch.setattr(module, "samples", lambda *_: iter(drawn))
        result = run_case(cpu, "sin")
        assert (result.outcome, result.oracles, result.samples) == (Outcome.FAIL, ("not compared",), 1)
        assert Run("cpu", [result]).exit_code() == 1
        entry = Declaration(Scope(op=("sin",)), ("not compared",), "opaque tensors cannot be looked at")
        declared = judged(result, [entry])
        assert (declared.outcome, Run("cpu", [declared]).exit_code()) == (Outcome.SKIP, 0)
        passed = judged(result.replace(outcome=Outcome.PASS, failures=()), [entry])
        assert passed.outcome is Outcome.XPASS


class TestEqualElements:
    """torch does not define the order of equal elements unless a sort is stable; CUDA's order of 8000 bools differs."""

    @staticmethod
    def outcome(op: str, act: Callable[[InterceptedCall], object]) -> str:
        target = MutantTarget("zero_ clears the storage")
        target.mode = Planted(Fault("sort", act, "a test"))
        return str(run_case(target, op, dtype="bool").outcome)

    @staticmethod
    def backwards(call: InterceptedCall) -> object:
        """Sort with equal elements in opposite order, unless the sort is stable."""
        t, dim = call.first, call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
        if call.kwargs.get("stable") or not t.numel() or not t.dim():
            return call.having(0, t)
        values, indices = call.having(0, t.flip(dim))
        return values, t.size(dim) - 1 - indices

    @staticmethod
    def repeated(call: InterceptedCall) -> object:
        """Sort with the index of one of the equal elements for each of them."""
        t, dim = call.first, call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
        values, indices = call.having(0, t)
        if not t.numel() or not t.dim():
            return values, indices
        same = values.gather(dim, torch.zeros_like(indices)) == values
        return values, torch.where(same, indices.select(dim, 0).unsqueeze(dim), indices)

    def test_any_order_is_right(self) -> None:
        assert self.outcome("sort", self.backwards) == "PASS"

    def test_an_index_twice_is_wrong(self) -> None:
        assert self.outcome("sort", self.repeated) == "FAIL"

    @pytest.mark.parametrize("spoil", ["", "value", "index"])
    def test_any_of_the_most_frequent_is_right(self, spoil: str) -> None:
        """torch names none of several modes: of int64 the CPU returns the least, and CUDA another one."""

        def greatest(call: InterceptedCall) -> object:
            t, dim = call.first, call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
            values, indices = call.having(0, -t)
            values, kept = -values, values.dim() == t.dim()
            if spoil == "value":
                values = values + 1
            if spoil == "index" and t.dim():  # of the least frequent value
                rows = t.movedim(dim, -1)
                counts = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1).movedim(-1, dim)
                indices = counts.argmin(dim, keepdim=kept)
            return values, indices

        target = MutantTarget("zero_ clears the storage")
        target.mode = Planted(Fault("mode", greatest, "a test"))
        assert str(run_case(target, "mode", dtype="int64").outcome) == ("FAIL" if spoil else "PASS")
