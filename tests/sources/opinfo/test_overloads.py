"""Aten overloads that op_db does not call: the sources of their arguments, and detection of wrong answers."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.record import names
from conformance.record.finding import ON_CPU
from conformance.record.result import Failure, Outcome
from conformance.run.messages import Limits
from conformance.run.program_workers import ProgramWorkers
from conformance.run.shrinking import LocalShrinker
from conformance.sources.opinfo import catalog, minimize, overloads, plan
from conformance.sources.opinfo.case import run_case
from conformance.sources.opinfo.plan import Case, Selection
from conformance.sources.opinfo.sampling import samples
from conformance.standalone.torch_compat import TorchDispatchMode
from conformance.targets.cpu import CpuTarget

ROOT = Path(__file__).parents[3]


class Lying(TorchDispatchMode):
    """Mode that adds one to the result of one overload, or to its written argument."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) == self.name:
            for one in result if isinstance(result, (list, tuple)) else [result or args[0]]:
                (one[0] if isinstance(one, list) else one).add_(1)
        return result


class Liar(CpuTarget):
    """Torch CPU under that mode."""

    name = "liar"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.mode = Lying(name)

    def active(self) -> Any:
        """The mode, active during the call only."""
        return self.mode


def cases(name: str, variant: str = "forward") -> list[plan.Case]:
    return plan.select(catalog.entries(beside=True), [Selection((name,), ("float32", "int64"), (variant,), samples=4)])


class TestLiesAreCaught:
    """A wrong answer of an overload outside op_db is detected, for each source of arguments."""

    @pytest.mark.parametrize(
        ("name", "overload"),
        [
            ("ops.aten.hann_window.periodic", "aten.hann_window.periodic"),  # from its schema
            ("ops.aten.bitwise_and.Scalar", "aten.bitwise_and.Scalar"),
            ("ops.aten.special_erfc.out", "aten.erfc.out"),  # from op_db's samples of another name
            ("ops.aten._adaptive_avg_pool3d.out", "aten._adaptive_avg_pool3d.out"),  # from the calls below autograd
            ("ops.aten.gru_cell", "aten.sigmoid_.default"),  # from a table row
        ],
    )
    def test_of_each_source(self, name, overload):
        results = [run_case(case, Liar(overload)) for case in cases(name)]
        assert results and {result.outcome for result in results} == {Outcome.FAIL}
        assert {run_case(case, CpuTarget()).outcome for case in cases(name)} == {Outcome.PASS}

    def test_of_a_foreach_operator(self):
        [case, *_] = cases("_foreach_add")
        assert run_case(case, CpuTarget()).outcome is Outcome.PASS
        result = run_case(case, Liar("aten._foreach_add.Scalar"))
        assert result.outcome is Outcome.FAIL and "value" in result.oracles


class TestEntries:
    def test_names_do_not_hide_op_db(self):
        assert not {op for op, _ in catalog.by_name()} & {*overloads.infos()}
        assert plan.asks_beside([Selection(("_foreach_*",))]) and not plan.asks_beside([Selection(("add", "fft*"))])

    def test_usual_runs_are_without_them(self):
        assert len(catalog.entries(beside=True)) - len(catalog.entries()) == len(overloads.infos()) > 1000

    @pytest.mark.parametrize("number", range(0, 1000, 50))
    def test_each_has_samples_in_every_dtype_that_it_names(self, number):
        op = [*overloads.infos().values()][number]
        dtypes = sorted(op.dtypes, key=str) if isinstance(op, overloads.Overload) else [torch.float32]
        assert all(next(samples(op, "forward", dtype, "as_sampled", 1), None) for dtype in dtypes)

    def test_internal_operators_have_changed_arguments_only(self):
        """No suite calls an internal operator with right arguments, so the suite `overloads` is as before."""
        entries = {entry.op: entry for entry in catalog.entries(beside=True)}
        internal = [name for name, op in overloads.infos().items() if getattr(op, "only", ())]
        assert "ops.aten.nll_loss2d_backward" in internal and len(internal) > 100
        assert all(entries[name].variants == {*names.CHANGED} for name in internal)
        chosen = {case.op for case in plan.select([*entries.values()], plan.SUITES["overloads"])}
        assert not chosen & {*internal}

    def test_modes_of_an_internal_operator(self):
        """Keywords are crossed among samples: each reduction reaches the operator, with one call of each mode."""
        op = overloads.infos()["ops.aten.nll_loss2d_backward"]
        calls = [*op.calls(torch.float32)]
        assert {args[4] for args, _ in calls} == {0, 1, 2}
        assert len({overloads.mode_of(call) for call in calls}) == len(calls)

    def test_a_crash_of_torch_cpu_has_a_script(self):
        """A call that ends the reference's process is written as a script without being run."""
        case = Case("ops.aten.nll_loss2d_backward", "", "other", "float32", "refused_index", "as_sampled", None)
        op = overloads.infos()[case.op]
        index = next(s.index for s in samples(op, case.variant, torch.float32, "as_sampled", None) if s.args[3] == 0)
        failure = Failure("crash", ON_CPU, "an answer", "killed its process with SIGSEGV", sample=index)
        with ProgramWorkers("cpu", Limits()) as workers, LocalShrinker(workers, minimize.TRIALS) as shrinker:
            smallest = minimize.minimized(shrinker, case, failure, math.inf)
        assert isinstance(smallest, Failure), smallest
        assert "torch.ops.aten.nll_loss2d_backward(a, b, c, " in smallest.script

    def test_one_sample_alone_is_the_same(self, monkeypatch):
        op = overloads.infos()["ops.aten.special_erfc"]
        second = [*samples(op, "forward", torch.float32, "as_sampled", 2)][1]
        monkeypatch.setenv("PYTORCH_OPINFO_SAMPLE_INPUT_INDEX", "1")
        [alone] = samples(op, "forward", torch.float32, "as_sampled", 1)
        assert alone.index == 1 and torch.equal(alone.input, second.input)

    def test_out_tensors_hold_what_no_answer_is(self):
        op = overloads.infos()["ops.aten.special_erfc.out"]
        sample = next(samples(op, "forward", torch.float32, "as_sampled", 1))
        assert bool((sample.kwargs["out"] == 7).all())

    def test_torch_cpu_agrees_with_itself(self):
        """Every fortieth entry agrees with itself; `conformance opinfo --target cpu --suite overloads` runs all of
        them."""
        entries = catalog.entries(beside=True)[len(catalog.entries()) :: 40]
        selected = plan.select(
            entries, [Selection(tuple(entry.name for entry in entries), ("float32", "int64"), samples=3)]
        )
        results = [run_case(case, CpuTarget()) for case in selected]
        assert len(results) > 20 and {result.outcome for result in results} == {Outcome.PASS}


class TestReasons:
    def test_an_excluded_one_has_a_reason(self):
        assert overloads.excluded("cudnn_convolution") == "of one vendor's library"
        assert overloads.excluded("batch_norm_elemt").startswith("without a kernel for the CPU")
        assert not overloads.excluded("add.Tensor")

    @pytest.mark.slow
    @pytest.mark.timeout(3000)
    def test_every_overload_is_called_or_has_a_reason(self):
        """Every aten overload is called or has a reason. Regression test: nothing called 1,700 of 3,110 overloads, and
        no list of them existed."""
        done = subprocess.run(
            [sys.executable, "-m", "scripts.overloads"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
