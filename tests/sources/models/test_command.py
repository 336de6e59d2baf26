"""The command `conformance models`: the table of models, on torch CPU and on targets that lie or lack an operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conformance.program.recorded import chosen
from conformance.record import result as model
from conformance.record.finding import HARNESS, INVALID
from conformance.record.models import ModelRow
from conformance.report.__main__ import main as report
from conformance.run.campaign.campaign import Campaign
from conformance.run.campaign.plan import Plan
from conformance.run.failing_program import FailingProgram
from conformance.sources.models.__main__ import main
from conformance.sources.models.calls import listed_calls, outcomes_of
from conformance.sources.models.recorder import CallRecorder

MODELS = {
    "adds": lambda x: x + x.sum(),
    "multiplies": lambda x: (x * 2).neg(),
    "squashes": lambda x: torch.tanh(x).sum(),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """The calls of three small models."""
    path, recorder, x = tmp_path_factory.mktemp("calls") / "calls.json", CallRecorder(), torch.randn(3, 4).t()
    for name, function in MODELS.items():
        with recorder.model(name):
            function(x)
    recorder.checked().save(path)
    return path


def run(target: str, file: Path, reports: Path, *words: str) -> tuple[int, dict[str, ModelRow], model.Run]:
    code = main(["--target", target, "--calls", str(file), "--reports", str(reports), "--check-scripts", "0", *words])
    model_run = model.load(reports / "models.json")
    return code, {row.name: row for row in model_run.models}, model_run


class TestTable:
    def test_cpu_is_green(self, file, tmp_path, capsys):
        """Every model runs, on the terminal and on the page."""
        code, rows, model_run = run("cpu", file, tmp_path)
        assert code == 0
        assert {row.outcome for row in rows.values()} == {"runs"}
        assert all(row.compared == row.calls > 0 for row in rows.values())
        assert model_run.drawn.compared == len(json.loads(file.read_text())["calls"])
        assert "3 of 3 models run, 0 stopped, 0 wrong" in capsys.readouterr().out
        page = (tmp_path / "models.html").read_text()
        assert "3 of 3 models run" in page
        assert "<h2>Recorded calls</h2>" in page

    def test_a_wrong_operator_names_the_models_that_it_falsifies(self, file, tmp_path, capsys):
        """`neg` and `mul` lie. The finding is shrunk and has a script, like any other."""
        code, rows, model_run = run("class:tests.planted.liars.ValueDevice", file, tmp_path)
        assert code == 1
        assert rows["adds"].runs
        assert rows["squashes"].runs
        assert rows["multiplies"].outcome == "wrong in aten::mul.Tensor (1), aten::neg (1)"
        assert {result.finding.title() for result in model_run.findings} == {
            "value / aten:mul.Tensor",
            "value / aten:neg.default",
        }
        assert all(
            result.finding.shrunk and "torch.ops.aten." in result.failures[0].script for result in model_run.findings
        )
        said = capsys.readouterr().out
        assert "2 of 3 models run, 0 stopped, 1 wrong" in said
        assert "wrong in aten::mul.Tensor (1)" in (tmp_path / "models.html").read_text()
        saved = sorted((tmp_path / "failures").glob("*.json"))
        assert {json.loads(path.read_text())["program"]["note"] for path in saved} == {
            "aten::mul.Tensor of multiplies", "aten::neg of multiplies"
        }  # fmt: skip

    def test_a_missing_operator_names_the_models_that_it_stops(self, file, tmp_path):
        code, rows, _ = run("class:tests.planted.liars.WithoutTanh", file, tmp_path)
        assert code == 1
        assert {name: row.outcome for name, row in rows.items()} == {
            "adds": "runs", "multiplies": "runs", "squashes": "stopped by aten::tanh (1)"
        }  # fmt: skip

    def test_one_error_of_several_operators_is_a_finding_of_each(self, file, tmp_path):
        """Regression test: the calls of all operators were counted for the operator that raised first."""
        _, rows, model_run = run("class:tests.planted.liars.OneError", file, tmp_path)
        titles = {result.finding.title(): result.finding.count for result in model_run.findings}
        assert titles == {"error / aten:neg.default": 1, "error / aten:tanh.default": 1}
        assert {name for name, row in rows.items() if row.stopped} == {"multiplies", "squashes"}

    def test_an_operator_declared_lacking_stops_its_models(self, file, tmp_path):
        """The profile's declaration is no finding, and the exit code is 0."""
        profile = tmp_path / "mine.toml"
        profile.write_text(
            '[target]\nkind = "class"\nname = "tests.planted.liars.WithoutTanh"\n\n[[declare]]\n'
            'scope = {operator = "aten::tanh", op = "tanh"}\nproperty = "unsupported"\nreason = "not yet"\n'
        )
        code, rows, _ = run(str(profile), file, tmp_path)
        assert code == 0
        assert rows["squashes"].outcome == "stopped by aten::tanh (1)"
        assert rows["adds"].runs

    def test_a_declared_finding_still_falsifies_its_model(self, file, tmp_path, monkeypatch):
        """The run is as expected, and the model is wrong."""
        target, declared = "class:tests.planted.liars.ValueDevice", tmp_path / "known.toml"
        words = ("--expectations", str(declared))
        assert run(target, file, tmp_path, *words, "--update-expectations")[0] == 0
        code, rows, _ = run(target, file, tmp_path, *words)
        assert code == 0
        assert rows["multiplies"].wrong == {"aten::mul.Tensor": 1, "aten::neg": 1}

    @pytest.mark.parametrize("kind", [HARNESS, INVALID])
    def test_a_fault_of_the_harness_falsifies_no_model(self, file, tmp_path, kind):
        """The call counts as not compared. Regression test: its models were wrong in the operator."""
        running = Campaign(Plan(listed_calls(str(file), (), 0), "cpu", reports=tmp_path))
        running.findings.known.append(FailingProgram(f"{kind} / no verdict", kind, 0))
        calls, ordered = chosen(str(file), ())
        running.result.listed = {str(number): "" for number in range(1, len(ordered))}
        rows = outcomes_of(calls, ordered, running.findings.distinct(), running.result.listed)
        assert not any(row.wrong or row.stopped for row in rows)
        assert [row.runs for row in rows] == [at not in ordered[0].models for at in range(len(calls.models))]

    def test_meta_compares_no_values(self, file, tmp_path):
        """It has no values, so the wrong ones do not show, and the metadata is right."""
        code, rows, _ = run("meta", file, tmp_path)
        assert code == 0
        assert all(row.runs for row in rows.values())

    def test_shards_join(self, file, tmp_path):
        """Two halves give the table of the whole."""
        parts = [tmp_path / name / "models.json" for name in "12"]
        counts = [run("cpu", file, part.parent, "--shard", f"{at}/2")[1] for at, part in enumerate(parts, 1)]
        assert report(["merge", *map(str, parts), "--reports", str(tmp_path)]) == 0
        rows = {row.name: row for row in model.load(tmp_path / "models.json").models}
        assert all(row.compared == row.calls for row in rows.values())
        assert len(counts) == 2


class TestChoice:
    def test_one_model(self, file, tmp_path):
        code, rows, model_run = run("class:tests.planted.liars.ValueDevice", file, tmp_path, "--model", "adds")
        assert (code, [*rows]) == (0, ["adds"])
        assert model_run.drawn.programs == rows["adds"].calls

    def test_some_calls(self, file, tmp_path):
        """`--programs` limits the calls; a row says how many of its calls ran."""
        _, rows, model_run = run("cpu", file, tmp_path, "--programs", "2")
        assert model_run.drawn.programs == 2
        assert sum(row.compared for row in rows.values()) < sum(row.calls for row in rows.values())

    def test_a_stopped_run_goes_on(self, file, tmp_path):
        """`--resume` runs the rest, and the table covers both parts."""
        target = "class:tests.planted.liars.ValueDevice"
        run(target, file, tmp_path, "--stop-at-first-failure")
        _, rows, _ = run(target, file, tmp_path, "--resume")
        assert all(row.compared == row.calls for row in rows.values())


class TestBadUsage:
    @pytest.mark.parametrize(("words", "said"), [
        (["--model", "addz"], "there is no recorded model 'addz'"),
        (["--calls", "gone.json"], "gone.json does not exist"),
        (["--calls", __file__], "is no file of recorded calls"), (["--models", "adds"], "there is no flag --models"),
    ])  # fmt: skip
    def test_one_sentence_and_exit_code_2(self, file, tmp_path, capsys, words, said):
        """Nothing runs, and no report is written."""
        arguments = ["--target", "cpu", "--reports", str(tmp_path / "reports"), "--calls", str(file), *words]
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        error = capsys.readouterr().err
        assert code == 2
        assert said in error
        assert error.count("\n") == 1
        assert not (tmp_path / "reports" / "models.json").exists()
