"""`conformance modules`: planted faults of state are found, and targets without faults pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from conformance.engine.loading import reference
from conformance.engine.target import Target
from conformance.program.float64 import JudgedProgram
from conformance.record import result as model
from conformance.record.causes import causes_of
from conformance.record.errors import TargetError, UsageError
from conformance.record.result import SHOWS, Outcome, Result
from conformance.sources.modules import tasks
from conformance.sources.modules.__main__ import main
from conformance.sources.modules.programs import MOST, trials_of
from conformance.sources.modules.table import DTYPES, VARIANTS, StatefulCase, load, names, rows, select
from conformance.standalone import stateful
from conformance.standalone.torch_compat import module_infos
from scripts import module_table
from tests.planted.lying_modes import Addcdiv

ROOT = Path(__file__).parents[3]
SCHEMA = Path(model.__file__).with_name("result.schema.json")
FAULTY = "device:cpu,import=tests.planted.lying_modes,call=stateful"


def command(folder: Path, target: str, *names: str, more: tuple[str, ...] = ()) -> int:
    ops = [word for name in names for word in ("--op", name)]
    return main(["--target", target, *ops, "--reports", f"{folder}", *more])


def results(folder: Path) -> dict[str, Result]:
    return {result.id.removesuffix("::modules"): result for result in model.load(folder / "modules.json").results}


class TestTable:
    def test_it_has_every_entry_of_torch(self) -> None:
        """The pinned torch has exactly the rows of the file, and a run names what a newer torch has beyond them."""
        if torch.__version__.partition("+")[0] != rows()["torch"]:
            pytest.skip("the table is that of another torch")
        assert module_table.dumps(module_table.table()) == module_table.FILE.read_text()
        assert tasks.names_without_row() == []

    def test_each_name_once(self) -> None:
        assert len({*names()}) == len(names()) > 120
        cases = load(DTYPES, VARIANTS)
        assert len({case.id for case in cases}) == len(cases)
        assert {case.variant for case in cases} == {*VARIANTS}

    def test_what_amplifies_rounding_is_compared_in_float64_only(self) -> None:
        """Regression test: LBFGS in float32 was a failure of each device that sums in another order than torch CPU."""
        cases = select(["optim.LBFGS"], DTYPES, VARIANTS)
        assert {(case.dtype, case.variant) for case in cases} == {("float64", "step"), ("float64", "state_dict")}

    def test_unknown_names(self) -> None:
        """A misspelt name is one sentence with the nearest one, and a form that no chosen optimizer has is refused."""
        with pytest.raises(UsageError, match=r"'nn.Lineer'; did you mean nn.Linear"):
            select(["nn.Lineer"], DTYPES, VARIANTS)
        with pytest.raises(UsageError, match="none of these is defined for float32 and fused"):
            select(["optim.Rprop"], ["float32"], ["fused"])

    def test_samples_are_bounded_and_from_the_whole_range(self) -> None:
        """nn.LinearCrossEntropyLoss has hundreds of samples, which took more than the limit of a case."""
        name = "nn.CrossEntropyLoss"
        numbers = [trial.number for trial in trials_of(StatefulCase(name, "float32", "train"), reference())]
        count = len(stateful.module_inputs(name, torch.float32, True))
        assert len(numbers) <= MOST < count and numbers[-1] > count * 0.8


class TestCalls:
    """The calls on torch CPU do what a user's code does."""

    def test_a_module_is_built_anew_over_its_state(self) -> None:
        """The copy shares the memory of the tree, so that the writes to its buffers show, and not that of the
        original."""
        module, given = stateful.module_sample("nn.BatchNorm1d", torch.float32, True, 0)
        before = module.running_mean.clone()
        results = stateful.module_results(stateful.call_module, module, given)
        assert {*results["gradients"]} == {"weight", "bias"}
        assert not torch.equal(given["state"]["running_mean"], before)
        assert torch.equal(module.running_mean, before)
        plain = torch.nn.BatchNorm1d(10).train()
        output = plain(*given["args"])
        torch.testing.assert_close(results["output"], output)
        torch.testing.assert_close(given["state"]["running_var"], plain.running_var)

    def test_a_round_trip_ends_in_the_trained_state(self) -> None:
        module, given = stateful.module_sample("nn.BatchNorm1d", torch.float32, True, 0)
        results = stateful.module_round_trip(stateful.call_module, module, given)
        assert results["keys"] == [] and int(results["state"]["num_batches_tracked"]) == 2

    def test_every_kind_of_module_can_be_built(self) -> None:
        """Lazy modules have parameters, and modules that write in place get arguments that allow it."""
        for name in ("nn.LazyConv1d", "nn.LSTM", "nn.Transformer", "nn.ReLU"):
            module, given = stateful.module_sample(name, torch.float32, True, 0)
            assert name == "nn.ReLU" or given["state"]
            stateful.module_results(stateful.call_module, module, given)

    def test_the_answer_in_float64_is_that_to_the_same_gradient(self) -> None:
        """Regression test: another precision drew another gradient, so that float64 differed by millions of tolerances
        and excused every gradient."""
        for trial in trials_of(StatefulCase("nn.Embedding", "float32", "train"), reference()):
            expected = trial.cpu.run
            wide = JudgedProgram(trial.program).in_float64([], expected.last)
            assert wide is not None
            name = "result['gradients']['weight']"
            right, want = wide.last.tensors[name].value, expected.last.tensors[name].value
            torch.testing.assert_close(want.double(), right.double(), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", ["Adam", "SGD", "LBFGS", "Muon"])
    def test_an_optimizer_that_is_loaded_goes_on_as_if_it_had_not_stopped(self, name: str) -> None:
        """After all steps, the parameters are those of a run without a pause."""
        whole, cut = (stateful.optimizer_sample(name, torch.float64, 1) for _ in range(2))
        stateful.optimizer_results(stateful.step_optimizer, name, "step", whole)
        again = stateful.optimizer_round_trip(stateful.step_optimizer, name, "step", cut)
        torch.testing.assert_close(again["parameters"], whole["parameters"])
        begun = stateful.optimizer_sample(name, torch.float64, 1)["parameters"]
        assert not any(torch.equal(x, y) for x, y in zip(begun, whole["parameters"]))


class WrongState(Target):
    """torch CPU under the mode with wrong states."""

    name = "cpu"

    def active(self) -> Any:
        return Addcdiv()


class TestJudging:
    @pytest.mark.parametrize(
        ("op", "variant", "where"),
        [
            ("nn.BatchNorm1d", "train", "state['running_var']"),
            ("nn.BatchNorm1d", "eval", ""),
            ("nn.Linear", "train", ""),
            ("nn.Embedding", "train", "result['gradients']['weight']"),
            ("optim.Adam", "step", "parameters[0]"),
            ("optim.Adam", "foreach", ""),
        ],
    )
    def test_planted_faults_of_state(self, op: str, variant: str, where: str) -> None:
        """A wrong addcdiv_ shows in the parameters, in the form that calls it; a wrong running variance in train mode,
        though the output is right."""
        result = tasks.judge_case(StatefulCase(op, "float32", variant), WrongState())
        assert result.outcome is (Outcome.FAIL if where else Outcome.PASS) and result.samples > 1
        assert {each.where for each in result.failures if each.oracle == "value"} == ({where} if where else set())

    def test_what_torch_cpu_lacks_is_a_skip_with_its_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It never passes."""

        def lacks(*args: Any) -> Any:
            raise NotImplementedError("no kernel")

        monkeypatch.setattr(stateful, "module_results", lacks)
        result = tasks.judge_case(StatefulCase("nn.Linear", "float32", "train"), WrongState())
        assert (result.outcome, result.samples, result.skipped) == (Outcome.SKIP, 0, 3)
        assert "the CPU does not implement it either" in result.reason

    def test_an_error_of_the_harness_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stateful, "module_sample", lambda *args: 1 / 0)
        result = tasks.judge_case(StatefulCase("nn.Linear", "float32", "train"), WrongState())
        assert [each.oracle for each in result.failures] == ["harness"] and result.outcome is Outcome.FAIL


class TestCommand:
    @pytest.mark.slow
    def test_planted_faults_of_state(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A wrong addcdiv_ shows in the parameters, and in no other form than the one that calls it; a wrong running
        variance shows in train mode and in what is saved, though the output is right. Each script shows it alone."""
        names = ("optim.Adam", "nn.BatchNorm1d", "nn.Linear")
        assert command(tmp_path, FAULTY, *names, more=("--dtype", "float32")) == 1
        found = results(tmp_path)
        wrong = {name for name, result in found.items() if result.outcome is Outcome.FAIL}
        assert wrong == {
            "optim.Adam::float32::step",
            "optim.Adam::float32::state_dict",
            "nn.BatchNorm1d::float32::train",
            "nn.BatchNorm1d::float32::state_dict",
        }
        assert found["nn.Linear::float32::train"].samples == 3
        assert {found[name].alone for name in wrong} == {SHOWS}
        assert {cause.pattern.partition(" of ")[0] for cause in causes_of(found.values())} == {"value"}
        [value] = [each for each in found["nn.BatchNorm1d::float32::train"].failures if each.oracle == "value"]
        assert value.where == "state['running_var']"
        text = (tmp_path / "modules.json").read_text()
        jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
        assert "nn.BatchNorm1d::float32::train" in (tmp_path / "modules.html").read_text()
        assert "4 failed" in capsys.readouterr().out

    @pytest.mark.slow
    def test_a_compiler(self, tmp_path: Path) -> None:
        """The module and the step reach the compiler, and agree with eager PyTorch."""
        names = ("nn.BatchNorm1d", "optim.SGD")
        assert command(tmp_path, "aot_eager", *names, more=("--dtype", "float32", "--variant", "train,foreach")) == 0
        assert {str(result.outcome) for result in results(tmp_path).values()} == {"PASS"}

    @pytest.mark.slow
    @pytest.mark.tiny
    def test_tiny(self, tmp_path: Path) -> None:
        """Regression test: the gradient of an embedding, a sum of hundreds of numbers in another order, failed, and so
        did the number of steps, which an optimizer keeps on the CPU."""
        names = ("nn.BatchNorm1d", "nn.Embedding", "optim.Adam")
        assert command(tmp_path, "tiny", *names, more=("--dtype", "float32")) == 0
        assert {result.variant for result in results(tmp_path).values()} == {*VARIANTS}

    def test_a_target_that_holds_no_state_is_refused(self) -> None:
        for target in ("meta", "vmap", "functionalize"):
            with pytest.raises(TargetError, match="cannot hold a module"):
                tasks.describe_environment(target)

    def test_torch_defines_no_fused_form_for_a_device(self) -> None:
        """This is a reason to skip, by torch's own list, and not an exception of the device."""
        from types import SimpleNamespace

        case = StatefulCase("optim.Adam", "float32", "fused")
        on = lambda kind: SimpleNamespace(device=SimpleNamespace(type=kind))  # noqa: E731
        assert tasks.unfit(case, on("vulkan")) == "torch has no fused Adam for vulkan"
        assert tasks.unfit(case, on("cpu")) == ""
        assert "has no nn.Unheard" in tasks.unfit(StatefulCase("nn.Unheard", "float32", "train"), on("cpu"))

    def test_unknown_words(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for more in (("--dtype", "float31"), ("--variant", "trane"), ("--op", "nn.Lineer")):
            assert command(tmp_path, "cpu", more=more) == 2
            assert capsys.readouterr().err.count("\n") == 1
        assert module_infos()
